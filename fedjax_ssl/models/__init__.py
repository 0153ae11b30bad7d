"""Networks as pure functions that return class scores and features, and the convolution they share.

Example:
    >>> model = fs.models.build("mlp", num_classes=10, input_shape=(8, 8, 1), hidden=(64,))
    >>> params, state = model.init(jax.random.key(0))
    >>> outputs, state = model.apply(params, state, jnp.zeros((3, 8, 8, 1)), train=False)
    >>> outputs.logits.shape, outputs.features.shape
    ((3, 10), (3, 64))
"""

# For users who run mypy --strict.
# mypy: implicit-reexport

from typing import TYPE_CHECKING

from fedjax_ssl.lazy import attach

if TYPE_CHECKING:
    from fedjax_ssl.models.convolution import conv2d, conv_general_dilated
    from fedjax_ssl.models.layers import unit_length
    from fedjax_ssl.models.model import PRECISIONS, Model, Outputs, count_parameters, in_precision
    from fedjax_ssl.models.named_networks import MODELS, available, build, options
    from fedjax_ssl.models.own_networks import from_linen, from_nnx
    from fedjax_ssl.models.pooling import max_pool
    from fedjax_ssl.models.pretrained import started

__getattr__, __dir__ = attach(__name__)
