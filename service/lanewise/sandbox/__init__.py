"""Runs what a client's or a model file's text makes unbounded, in processes that can be ended."""
