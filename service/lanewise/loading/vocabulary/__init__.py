"""Tokenizer files of all kinds."""
