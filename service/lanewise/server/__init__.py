"""``lanewise serve``: puts model, engine and HTTP together."""
