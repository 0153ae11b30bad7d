"""Networks as pure functions that return class scores and features, and the convolution they share."""

from fedjax_ssl.models.convolution import conv2d
from fedjax_ssl.models.model import Model, Outputs, count_parameters
from fedjax_ssl.models.pooling import max_pool
from fedjax_ssl.models.precision import PRECISIONS, in_precision
from fedjax_ssl.models.registry import MODELS, available, build, options
