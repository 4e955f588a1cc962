"""From the fields of a file to a program of layers, and what the library says of it."""
