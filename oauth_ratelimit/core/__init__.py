"""The arithmetic: keys, policies, windows, decisions. Standard library only; time comes in as a number."""
