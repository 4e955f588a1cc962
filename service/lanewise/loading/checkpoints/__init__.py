"""From a path or a name to a checkpoint."""
