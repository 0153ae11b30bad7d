"""Contributed ways with features of an encoder that is not trained, a file each."""
