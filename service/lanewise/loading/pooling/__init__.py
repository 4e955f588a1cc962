"""Embedders and rerankers: pooling, heads, modules."""
