"""A made-up state dict with torchvision's names and shapes, the same on every machine."""

import math

import jax
import numpy as np
from flax.traverse_util import flatten_dict

from fedjax_ssl import models
from fedjax_ssl.models.pretrained import efficientnet_b0_layers, their_names, their_shape


def draw_array(seed, name, shape):
    """Values that neither blow the signal up nor let it die; RandomState, because its stream
    never changes.
    """
    low = -0.3
    high = 0.3
    if name.endswith("running_var"):
        low = 0.5
        high = 2.0
    elif len(shape) > 1:
        high = 1.6 * math.sqrt(3 / math.prod(shape[1:]))
        low = -high
    elif name.endswith("weight"):
        low = 0.5
        high = 1.5
    return np.random.RandomState(seed).uniform(low, high, shape).astype(np.float32)


def efficientnet_b0_arrays(num_classes):
    model = models.build("efficientnet_b0", num_classes=num_classes, input_shape=(32, 32, 3))
    return arrays_of(model, efficientnet_b0_layers())


def arrays_of(model, layers):
    params, state = jax.eval_shape(model.init, jax.random.key(0))
    ours = flatten_dict({"params": params, "state": state})
    names = their_names(ours, layers)
    shapes = {name: their_shape(ours[place].shape) for place, name in names.items()}
    arrays = {
        name: draw_array(seed, name, shape)
        for seed, (name, shape) in enumerate(sorted(shapes.items()))
    }
    counts = {
        name.replace("running_mean", "num_batches_tracked"): np.int64(7)
        for name in shapes
        if "_mean" in name
    }
    return {**arrays, **counts}
