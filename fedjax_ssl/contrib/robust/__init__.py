"""Sums that a few false uploads cannot move far, by the names used in `config.sum.name`."""
