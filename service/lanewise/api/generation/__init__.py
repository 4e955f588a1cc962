"""From a request to its answer: one path, and the types at its ends that dialects translate."""
