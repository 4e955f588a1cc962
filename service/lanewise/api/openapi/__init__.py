"""What /openapi.json says of answers."""
