"""One file for each model family, and the table that finds it."""
