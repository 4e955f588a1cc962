"""From an image to what a tower sees of it, and to the text around its rows."""
