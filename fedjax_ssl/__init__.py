"""fedjax_ssl: federated learning with few, coarse or no labels, on one functional training step."""

__version__ = "0.1.0"
