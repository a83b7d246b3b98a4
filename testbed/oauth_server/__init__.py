"""An OAuth 2 and OpenID Connect server on Flask and Authlib, and its database."""
