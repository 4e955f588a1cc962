"""Connections: what they may cost before a request is admitted, and errors at each path."""
