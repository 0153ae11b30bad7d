"""Federated optimizers, by the names used in `config.federated.name`."""
