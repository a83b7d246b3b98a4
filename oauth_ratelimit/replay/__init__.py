"""Replay of recorded traffic: denials under a configuration."""
