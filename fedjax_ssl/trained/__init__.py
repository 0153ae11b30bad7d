# mypy: implicit-reexport
"""Trained models: a run folder as something that predicts, and how it goes elsewhere."""

from fedjax_ssl.trained.model import TrainedModel, TrainedModelError, load_run
