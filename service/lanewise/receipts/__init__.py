"""Receipts of answers: what they say, how they are signed, and by which key."""
