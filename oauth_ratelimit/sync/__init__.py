"""What an instance has counted, and how it gets to the others."""
