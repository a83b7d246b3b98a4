"""Clients that request more tokens than they need: findings, and letters to their owners."""
