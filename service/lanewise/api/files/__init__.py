"""``/v1/files``: what clients send to be kept, and what is made for them."""
