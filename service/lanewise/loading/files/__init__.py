"""Readers of files of tensors."""
