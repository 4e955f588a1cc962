"""Which sequence runs next, and which requests wait, are refused or end."""
