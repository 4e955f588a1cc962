"""The forms in which clients ask and are answered: a file each, around ``generation/path.py``."""
