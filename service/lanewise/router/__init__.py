"""Several models behind one address: a thin process before one ordinary server for each."""
