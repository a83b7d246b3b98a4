"""Shared ground of demo, tests and benchmarks.

An OAuth server, MongoDB and gunicorn to run it, recorded traffic, and a comparison of algorithms on it.
"""
