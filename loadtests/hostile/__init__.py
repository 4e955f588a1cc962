"""Hostile requests of every kind beside honest streams, and what the honest see of them."""
