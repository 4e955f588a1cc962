"""Lanewise: an LLM inference server for CPUs that gives one request one answer."""
