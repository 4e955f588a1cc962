"""How likely a model that writes text finds given continuations of a prompt."""
