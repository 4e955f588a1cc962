"""The small model that is served when no other is named."""
