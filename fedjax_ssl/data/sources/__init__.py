"""Datasets: published archives, embedded ones, and the user's own arrays; each ends as a `Dataset`."""
