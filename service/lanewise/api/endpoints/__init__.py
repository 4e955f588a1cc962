"""The table of endpoints, and those that generate nothing."""
