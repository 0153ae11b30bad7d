"""Trained models: a run folder as something that predicts, and how it goes elsewhere."""

# For users who run mypy --strict.
# mypy: implicit-reexport

from fedjax_ssl.trained.trained_model import TrainedModel, TrainedModelError, load_run
