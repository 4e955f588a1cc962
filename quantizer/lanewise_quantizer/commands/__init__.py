"""``lanewise quantize``, which writes a model in fewer bits."""
