"""The forms in which clients ask and are answered: one file each, on the path in ``path.py``."""
