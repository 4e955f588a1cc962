"""What all rooms of the engine speak of: requests, sequences, steps, blocks."""
