"""Trained models: a run folder as something that predicts, and what of it goes elsewhere."""

from fedjax_ssl.trained.load import load_run
from fedjax_ssl.trained.model import TrainedModel, TrainedModelError
