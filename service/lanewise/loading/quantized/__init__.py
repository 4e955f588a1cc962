"""Tensors that checkpoints hold quantized in ways of their own."""
