"""Training of one part of a network; the rest is a parameter group that is never moved or sent."""

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase

import jax
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import PyTree

from fedjax_ssl.federated import Recipe
from fedjax_ssl.federated.contract import Params, merged

ALL = "all"
REST = "not trained"  # parameter group of the untrained rest
_HEAD = ("head", "aux_head")
Place = tuple[str, ...]


def with_trained_part(recipe: Recipe, train: str) -> Recipe:
    """Return the method with training of one part of its network.

    The rest keeps its initial values. Batch statistics still follow the batches.

    Args:
        recipe: recipe of a method whose parameter groups are parts of its network.
        train: "all", "head" (the layers `head` and `aux_head`), or names of layers or parameters
            with commas between, in which * stands for anything: "block11,norm,head".

    Raises:
        ValueError: a name matches nothing, or the method has nothing to train in one of its groups.
    """
    if train == ALL:
        return recipe
    groups = recipe.groups
    shapes, _ = jax.eval_shape(recipe.setup.model.init, jax.random.key(0))
    network = flatten_dict(shapes)
    chosen = _chosen(train, network)
    if chosen == network.keys():
        raise ValueError(f"train is {train!r}, which is all of this network; write train=all")
    split_shapes = jax.eval_shape(groups.split, shapes)
    parts = {name: flatten_dict(tree) for name, tree in split_shapes.items()}
    if sorted(place for part in parts.values() for place in part) != sorted(network):
        raise ValueError(
            f"train is {train!r}, but the parameter groups of {recipe.name!r} "
            f"({', '.join(parts)}) are no parts of the network; use train=all or another method"
        )
    if empty := [name for name, part in parts.items() if not chosen & part.keys()]:
        raise ValueError(
            f"this method trains {', '.join(empty)} apart, of which nothing is trained with "
            f"train={train}; name some of its layers, or use another method"
        )

    if not recipe.class_scores and all(place[0] in _HEAD for place in chosen):
        raise ValueError(
            "this method learns by features, which stay as they are where the head alone is "
            "trained; name other layers in train, or use a method that learns class scores"
        )

    def split(params: PyTree) -> Params:
        own = {name: _only(tree, chosen) for name, tree in groups.split(params).items()}
        return {**own, REST: _only(params, network.keys() - chosen)}

    return recipe._replace(groups=groups._replace(split=split, combine=merged))


def _only(tree: PyTree, places: set[Place]) -> PyTree:
    flat = flatten_dict(tree)
    return unflatten_dict({place: leaf for place, leaf in flat.items() if place in places})


def _chosen(train: str, network: Mapping[Place, PyTree]) -> set[Place]:
    """Find the parameters that are named, or that belong to named layers."""
    names = _HEAD if train == "head" else tuple(filter(None, re.split(r"\s*,\s*", train.strip())))
    found = {
        name: {place for place in network if _matches(".".join(place), name)} for name in names
    }
    layers = list(dict.fromkeys(place[0] for place in network))
    listed = ", ".join(layers[:12]) + ", ..." * (len(layers) > 12)
    wrong = [name for name, places in found.items() if not places]
    if (wrong and names is not _HEAD) or not any(found.values()):
        raise ValueError(
            f"train is {train!r}, and no parameter is named {' or '.join(wrong) or 'so'}; the "
            f"network has {listed}"
        )
    return set().union(*found.values())


def _matches(parameter: str, name: str) -> bool:
    return fnmatchcase(parameter, name) or fnmatchcase(parameter, f"{name}.*")
