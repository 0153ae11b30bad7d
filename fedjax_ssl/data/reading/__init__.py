"""Tools that readers of datasets share: registration, downloads, caches, tables, images."""
