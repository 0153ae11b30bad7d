"""What hides a client or an example, by the names used in `config.privacy.name`, and its account.

A mechanism is a frozen dataclass of settings that keeps `fedjax_ssl.runs.privacy.Mechanism`.
"""
