"""Trained models: a run folder as a predictor, and its exports."""

# For users who run mypy --strict.
# mypy: implicit-reexport

from fedjax_ssl.trained.trained_model import TrainedModel, TrainedModelError, load_run
