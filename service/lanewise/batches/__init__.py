"""Batches of requests: their lines, their answers in files, and their rows in the database."""
