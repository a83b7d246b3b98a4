"""Everything that talks to MongoDB."""
