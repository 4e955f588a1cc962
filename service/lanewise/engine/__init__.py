"""Continuous batching: which tokens of which sequences the model runs next. Integers only."""
