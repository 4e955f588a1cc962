"""The commands beside ``serve``: bench, perplexity, doctor and pull."""
