"""From requests of texts to their vectors, scores and classes."""
