"""What a server keeps in its data directory: one SQLite database, and plain files beside it."""
