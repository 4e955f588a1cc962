"""The commands beside ``serve`` and ``quantize``: bench, perplexity, doctor, pull and others."""
