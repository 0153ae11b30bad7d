"""Mechanisms that hide a client or an example, by their names in `config.privacy.name`, and the
privacy accountant.

A mechanism is a frozen dataclass of settings that keeps `fedjax_ssl.runs.privacy.Mechanism`.
"""
