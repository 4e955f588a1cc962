"""Guesses of the next tokens, and whether they pay."""
