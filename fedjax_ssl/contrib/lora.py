"""LoRA: low-rank pairs of matrices beside the kernels of a network.

Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, ICLR 2022, arXiv 2106.09685: a kernel
W becomes W + scale A B, where A and B are trained and W is fixed. A has the rows of W, all of its
leading axes together, and B its columns; B starts at zero.
"""

from fnmatch import fnmatchcase
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Array, PRNGKeyArray, PyTree

from fedjax_ssl.keys import named_key
from fedjax_ssl.models import Model, Outputs

# name of the pairs among the parameters; `config.model.train=lora` trains them alone
PAIRS = "lora"


def lora(model: Model, rank: int = 4, layers: str = "*kernel", scale: float = 1.0) -> Model:
    """Return a model with the parameters of another one, plus a pair of matrices beside its
    kernels.

    Args:
        model: any model.
        rank: rank of the pairs.
        layers: name of the kernels by their place in the parameters, * for anything.
        scale: factor of the pairs' products.

    Raises:
        ValueError: no array with two or more axes has such a name, or the rank is above the
            kernel's.
    """
    shapes = flatten_dict(jax.eval_shape(model.init, jax.random.key(0))[0], sep=".")
    kernels = {
        name: (leaf.size // leaf.shape[-1], leaf.shape[-1])
        for name, leaf in shapes.items()
        if leaf.ndim > 1 and fnmatchcase(name, layers)
    }
    if not kernels or rank > (most := min(map(min, kernels.values()))):
        why = f"the smallest of these kernels has {most}" if kernels else "no kernel is named so"
        raise ValueError(f"lora: rank {rank} and layers {layers!r}, but {why}: {', '.join(shapes)}")

    def init(key: PRNGKeyArray) -> tuple[PyTree, PyTree]:
        params, state = model.init(key)
        pairs = {}
        for name, (rows, columns) in kernels.items():
            drawn = jax.random.normal(named_key(key, f"lora {name}"), (rows, rank)) * rows**-0.5
            pairs[name] = {"a": drawn, "b": jnp.zeros((rank, columns))}
        return {**params, PAIRS: unflatten_dict(pairs, sep=".")}, state

    def apply(
        params: PyTree, state: PyTree, inputs: Array, **options: Any
    ) -> tuple[Outputs, PyTree]:
        flat = flatten_dict(params, sep=".")
        whole = {name: flat[name] for name in shapes}
        for name in kernels:
            product = flat[f"{PAIRS}.{name}.a"] @ flat[f"{PAIRS}.{name}.b"]
            whole[name] += scale * product.reshape(whole[name].shape)
        return model.apply(unflatten_dict(whole, sep="."), state, inputs, **options)

    return model._replace(init=init, apply=apply)
