"""Towers, which make rows of pictures: a file for each kind, and the table that finds it."""
