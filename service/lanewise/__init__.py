"""Lanewise: an LLM inference server for CPUs that gives one request one answer."""

__version__ = "0.1.0"
