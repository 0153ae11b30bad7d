"""Shared tools of dataset readers: registration, downloads, caches, tables, images."""
