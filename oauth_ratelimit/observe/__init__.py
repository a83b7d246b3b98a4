"""
What operators see: events, metrics, statistics.
"""
