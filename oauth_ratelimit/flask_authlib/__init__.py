"""Flask and Authlib: from a request to its key, and from a decision to the response."""
