"""What the makers of the PyTorch fixtures share: tiny data, a tiny network, and stand-ins for
logging.

Runs in an environment of its own, beside the released code of a method; see README.md.
"""

import numpy as np
import torch

FEATURES = 6
HIDDEN = 5
CLASSES = 3
torch.set_default_dtype(torch.float64)  # so that what differs is no rounding


class Silent:
    """Stands in for metrics and logs: it has every attribute, and calling it does nothing."""

    def __getattr__(self, name):
        return self

    def __call__(self, *args, **kwargs):
        return self

    def __getitem__(self, key):
        return self

    def __setitem__(self, key, value):
        pass

    def __imul__(self, other):
        return self


def examples(
    rng: np.random.Generator, size: int, noise: float = 0.7
) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian clouds, one for each class: float64 [size, FEATURES], and the classes."""
    labels = np.arange(size) % CLASSES
    centres = 1.5 * np.eye(CLASSES, FEATURES)
    return (centres[labels] + noise * rng.normal(size=(size, FEATURES))), labels


def weights(rng: np.random.Generator, scale: float = 1.0) -> dict[str, np.ndarray]:
    """First weights of the tiny network, named as fedjax_ssl's `mlp` with batch norm names them."""

    def draw(*shape):
        return scale * rng.normal(size=shape)

    return {
        **{"dense1/kernel": draw(HIDDEN, FEATURES), "dense1/bias": draw(HIDDEN)},
        **{"norm1/scale": 1 + 0.2 * draw(HIDDEN), "norm1/bias": 0.2 * draw(HIDDEN)},
        **{"head/kernel": draw(CLASSES, HIDDEN), "head/bias": 0.1 * draw(CLASSES)},
    }


NAMES = {
    **{"dense.weight": "dense1/kernel", "dense.bias": "dense1/bias"},
    **{"norm.weight": "norm1/scale", "norm.bias": "norm1/bias"},
    **{"linear.weight": "head/kernel", "linear.bias": "head/bias"},
}


def to_torch(tree: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Weights as a state dict."""
    state = {name: torch.tensor(tree[theirs]) for name, theirs in NAMES.items()}
    state["dense.weight"] = state["dense.weight"][:, :, None, None].contiguous()
    return state


def from_torch(state: dict[str, torch.Tensor], prefix: str = "") -> dict[str, np.ndarray]:
    """A state dict as weights, and as running statistics where it has some."""
    found = {
        f"{prefix}{ours}": state[name].detach().cpu().numpy().copy() for name, ours in NAMES.items()
    }
    found[f"{prefix}dense1/kernel"] = found[f"{prefix}dense1/kernel"][:, :, 0, 0]
    for name, ours in {"norm.running_mean": "norm1/mean", "norm.running_var": "norm1/var"}.items():
        if state.get(name) is not None:
            found[f"{prefix}{ours}"] = state[name].detach().cpu().numpy().copy()
    return found


def tiny_body(self: torch.nn.Module) -> None:
    """The layers of the network: affine, batch norm, rectified, affine. Examples are images of
    one pixel.
    """
    self.dense = torch.nn.Conv2d(FEATURES, HIDDEN, 1)
    self.norm = torch.nn.BatchNorm2d(HIDDEN)
    self.linear = torch.nn.Linear(HIDDEN, CLASSES)


def tiny_forward(self: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Their output for examples [n, FEATURES, 1, 1]."""
    return self.linear(torch.relu(self.norm(self.dense(x))).flatten(1))
