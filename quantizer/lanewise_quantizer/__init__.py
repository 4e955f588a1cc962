"""Weight formats of Lanewise in numpy: the second implementation of quantizer/FORMAT.md."""
