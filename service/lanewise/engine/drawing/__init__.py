"""What a token is drawn by: parameters, grammars, masks."""
