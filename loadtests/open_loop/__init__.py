"""Open loop: requests come when they come, whether those before them are answered or not."""
