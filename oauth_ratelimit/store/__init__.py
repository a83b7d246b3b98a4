"""Where instances share what they have counted."""
