"""Records that all rooms of loading share: a program, tensors, formats, errors."""
