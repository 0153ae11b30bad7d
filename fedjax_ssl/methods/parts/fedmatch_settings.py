"""FedMatch's settings: what its presets say, and what is allowed."""

import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedjax_ssl.checks import check_choices, check_numbers, check_weights, check_whole_numbers, is_zero
from fedjax_ssl.federated import Setup
from fedjax_ssl.methods.parts.fedmatch_exchange import PSI, SIGMA, Exchange
from fedjax_ssl.methods.parts.nearest_helpers import NOISES
from fedjax_ssl.methods.parts.sparse_exchange import ENCODINGS
from fedjax_ssl.objectives import TIES

Number = float | Array
# Setting -> its value with labels at the clients, and with labels at the server.
_PAPER: dict[str, tuple[float, float]] = {
    "threshold": (0.85, 0.85),
    "supervised_weight": (10.0, 10.0),
    "l1_weight": (1e-4, 1e-5),
    "l1_threshold": (5e-6, 1e-5),
    "delta_threshold": (5e-5, 1e-5),
    "patience": (5, 5),
    "clip_eps": (0.0, 0.0),
}
PRESETS = {
    "paper": _PAPER,
    "code": _PAPER | {"threshold": (0.75, 0.75), "patience": (5, 20), "clip_eps": (1e-7, 1e-7)},
    "streaming_alt": _PAPER | {"supervised_weight": (1.0, 1.0), "delta_threshold": (1e-5, 1e-5)},
}
# Parts that there are.
DECOMPOSITIONS = {"full": (SIGMA, PSI), "none": (SIGMA,), "without_sigma": (PSI,), "without_psi": (SIGMA,)}


class Settings(NamedTuple):
    """Of one run, as `fedjax_ssl.methods.fedmatch` explains them."""

    at_server: bool  # where the labels are
    supervised_weight: Number
    agreement_weight: Number
    kl_weight: Number
    l2_weight: Number
    l1_weight: Number
    threshold: Number
    num_helpers: int
    helper_interval: int
    helper_hold: str
    tie: str
    clip_eps: Number
    noise: str
    decomposition: str
    psi_factor: Number
    evaluate_sparse: bool
    l1_threshold: Number
    delta_threshold: Number
    s2c_lossy: bool
    first_contact: str
    c2s_send_sparsified: bool
    encoding: str
    unlabelled_batch_size: int | None
    server_batch_size: int
    server_epochs: int
    shuffle: bool
    lr_schedule: str
    lr_divisor: Number
    patience: int

    @property
    def parts(self) -> tuple[str, ...]:
        """Of the model."""
        return DECOMPOSITIONS[self.decomposition]

    @property
    def supervised_part(self) -> str:
        """That labelled examples move."""
        return self.parts[0]

    @property
    def unsupervised_part(self) -> str:
        """That unlabelled examples move, and of which helpers are sent."""
        return self.parts[-1]

    def split(self, params: Any) -> dict[str, Any]:
        """The first model: sigma and psi = psi_factor sigma, or one part for which the network is the same function."""
        scale = {SIGMA: 1.0, PSI: self.psi_factor}
        if len(self.parts) == 1:
            scale = {self.parts[0]: 1.0 + self.psi_factor}
        return {part: jax.tree.map(lambda w, by=scale[part]: by * w, params) for part in self.parts}

    @property
    def exchange(self) -> Exchange:
        """What server and clients send each other."""
        same = {name: getattr(self, name) for name in Exchange._fields if name in self._fields}
        uploaded = (self.unsupervised_part,) if self.at_server else self.parts
        return Exchange(uploaded=uploaded, helper_part=self.unsupervised_part, **same)


def settings_of(setup: Setup, preset: str, labels_at: str, given: dict[str, Any]) -> Settings:
    """Fills in what the preset says where a setting is None, and checks all.

    Args:
        setup: the run.
        preset: one of `PRESETS`.
        labels_at: "clients", "server" or "auto".
        given: the other settings by name.

    Raises:
        ValueError: a setting that is not allowed, or a run that would diverge.
    """
    check_choices(PRESETS, preset=preset)
    check_choices(("auto", "clients", "server"), labels_at=labels_at)
    at_server = setup.max_server > 0 if labels_at == "auto" else labels_at == "server"
    said = {name: values[at_server] for name, values in PRESETS[preset].items()}
    full: dict[str, Any] = {name: said.get(name) if value is None else value for name, value in given.items()}
    settings = Settings(at_server, **full)
    check_choices(DECOMPOSITIONS, decomposition=settings.decomposition)
    check_choices(TIES, tie=settings.tie)
    check_choices(NOISES, noise=settings.noise)
    check_choices(ENCODINGS, encoding=settings.encoding)
    check_choices(("one_round", "keep"), helper_hold=settings.helper_hold)
    check_choices(("dense", "init"), first_contact=settings.first_contact)
    check_choices(("client", "global", "none"), lr_schedule=settings.lr_schedule)
    for name in ("supervised", "agreement", "kl", "l2", "l1"):
        check_weights(**{f"{name}_weight": getattr(settings, f"{name}_weight")})
    check_weights(l1_threshold=settings.l1_threshold, delta_threshold=settings.delta_threshold)
    check_numbers("[0, 1]", threshold=settings.threshold)
    check_numbers("[0, 1)", clip_eps=settings.clip_eps)
    check_numbers("(-1, inf)", psi_factor=settings.psi_factor)
    check_numbers("[1, inf)", lr_divisor=settings.lr_divisor)
    check_whole_numbers(0, num_helpers=settings.num_helpers)
    check_whole_numbers(helper_interval=settings.helper_interval, patience=settings.patience)
    check_whole_numbers(server_batch_size=settings.server_batch_size, server_epochs=settings.server_epochs)
    if settings.decomposition != "none":
        _check_stability(setup, settings.l2_weight)
    return settings


def _check_stability(setup: Setup, l2_weight: Number) -> None:
    """A step brings psi - sigma to (1 - 2 eta l2_weight) of it."""
    rate = setup.learning_rate(jnp.zeros((), jnp.int32))
    if isinstance(rate, jax.core.Tracer) or isinstance(l2_weight, jax.core.Tracer) or is_zero(l2_weight):
        return
    product = round(float(rate) * float(l2_weight), 6)  # the rate is a number of 32 bits
    said = f"the learning rate {float(rate):g} times l2_weight {float(l2_weight):g} is {product:g}"
    if product >= 1:
        raise ValueError(f"{said}; from 1 on psi diverges. Lower one of them, in the paper it is 0.01")
    if product >= 0.5:
        warnings.warn(f"{said}; from 0.5 on psi swings around sigma. In the paper it is 0.01", stacklevel=4)
