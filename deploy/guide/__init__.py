"""What makes the guide's references from the code, and its site."""
