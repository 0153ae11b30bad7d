"""Contributed uses of an untrained encoder's features, one file each."""
