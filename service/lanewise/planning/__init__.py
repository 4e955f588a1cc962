"""What a model costs on a machine, from bytes, multiplications and how requests share steps."""
