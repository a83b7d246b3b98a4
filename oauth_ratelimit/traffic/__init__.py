"""Recorded traffic: what limits do to it, and what clients need."""
