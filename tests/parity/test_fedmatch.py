"""FedMatch against its authors' code: weights, costs and learning rates of three rounds, one
with helpers.
"""

import jax
import numpy as np
import pytest

from fedjax_ssl import methods, models
from tests import toy
from tests.parity.parity import KEY, difference, fixture, starting_from, under

CLIENTS = 4
LABELLED = 6
UNLABELLED = 12
SERVER = 6
ROUNDS = 3


def layers(tree):
    """Their list of kernels as our tree: eight convolutions, and a dense layer that is the other
    way round.
    """
    blocks = {
        f"block{number}": {"conv": {"kernel": tree[str(number - 1)]}} for number in range(1, 9)
    }
    return blocks | {"head": {"kernel": tree["8"].T}}


@pytest.mark.thorough
@pytest.mark.parametrize("scenario", [pytest.param("lc", marks=pytest.mark.promise), "ls"])
def test_weights_costs_and_rates_are_those_of_the_code(monkeypatch, scenario):
    said = fixture(f"fedmatch_{scenario}")
    at_server = scenario == "ls"
    noise = (said["noise"] - 125 / 255) / (125 / 255)
    monkeypatch.setattr(
        jax.random, "truncated_normal", lambda *_: jax.numpy.asarray(noise, "float32")
    )
    number = len(said["labels"])
    cut = np.split(
        np.arange(number), np.cumsum([LABELLED] * CLIENTS + [UNLABELLED] * CLIENTS + [SERVER])
    )
    rows = [
        np.concatenate([[], *([] if at_server else [cut[i]]), cut[CLIENTS + i]]).astype(int)
        for i in range(CLIENTS)
    ]
    data = toy.dealt(
        said["images"].repeat(8, 1).repeat(8, 2),
        said["labels"],
        rows,
        [0 if at_server else LABELLED] * CLIENTS,
        server=cut[-2] if at_server else (),
        valid=cut[-1],
        num_classes=3,
    )
    model = models.build(
        "fedmatch_resnet9", num_classes=3, input_shape=(32, 32, 3), width_factor=1 / 32
    )
    run = toy.setup(
        data,
        model=starting_from(model, layers(under(said, "first"))),
        learning_rate=1e-2,
        batch_size=3,
        local_epochs=1,
        normalize=lambda raw: raw.astype("float32") / 255,
        strong_augment=lambda key, images: images[:, :, ::-1],
    )
    method = methods.build(
        "fedmatch",
        run,
        preset="code",
        threshold=0.5,
        agreement_weight=0.3,
        kl_weight=0.3,
        helper_interval=2,
        delta_threshold=2e-3,
        patience=1,
        server_batch_size=4,
        unlabelled_batch_size=UNLABELLED // 2 if at_server else None,
    )
    states, infos = toy.every_state(method, KEY, data, ROUNDS)
    gaps = {}
    for number, (state, info) in enumerate(zip(states[1:], infos, strict=True)):
        if number in (0, ROUNDS - 1):
            theirs = {part: layers(tree) for part, tree in under(said, f"round{number}").items()}
            gaps[f"weights {number}"] = difference(state.params, theirs)
        gaps[f"embeddings {number}"] = difference(
            state.terms["fedmatch"].embeddings, said[f"embeddings{number}"]
        )
        gaps[f"rates {number}"] = difference(
            1e-2 * state.clients.terms["fedmatch"].plateau.factor, said[f"rates{number}"]
        )
        for name, part in (("psi", "psi"), ("sigma", "sig"), ("helpers", "hlp")):
            for way in ("s2c", "c2s"):
                if f"{way}_{name}" in info:
                    theirs = said[f"{way}_{part}_ratio{number}"].mean()
                    gaps[f"{way}_{name} {number}"] = abs(info[f"{way}_{name}"] - theirs)
    assert max(gaps.values()) < 1e-6
