"""Heads that others made to guess a model's next tokens, in files of their own."""
