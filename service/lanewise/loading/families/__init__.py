"""One file for each model family, and the table of families."""
