"""One step after the other: made, begun ahead, delivered."""
