"""Encoding a dataset once, so that methods train heads on its features."""
