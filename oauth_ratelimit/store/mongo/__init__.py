"""Stores in MongoDB."""
