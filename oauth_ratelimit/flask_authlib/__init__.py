"""Flask and Authlib: from a request to a key, from a decision to an answer."""
