"""`tfds:NAME`: a dataset of TensorFlow Datasets, from a folder that it has prepared."""

from fedjax_ssl.data.reading.register import dataset
from fedjax_ssl.data.reading.tfds import load_tfds

dataset(
    "tfds",
    "tfds:NAME, a folder that TensorFlow Datasets prepared, read without TensorFlow",
    terms="of the dataset: https://www.tensorflow.org/datasets/catalog/overview",
    kind="prepared",
)(load_tfds)
