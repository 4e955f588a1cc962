"""Reads model files, GGUF and Hugging Face directories: config, tensors, tokenizer files."""
