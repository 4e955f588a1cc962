"""The C library as cffi opens it, before anything knows of models."""
