"""Keys and values on disk: a prompt that was computed once is read instead, after restarts too."""
