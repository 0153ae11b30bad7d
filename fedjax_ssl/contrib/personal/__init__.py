"""Models of the clients' own, by the names used in `config.personalize.name`."""
