"""Stores that instances share."""
