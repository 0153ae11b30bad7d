"""Contributed methods, by the names used in `config.method.name`."""
