"""Virtual adversarial training of a local step's network, as FedLLP-VAT and `vat` use it."""

from typing import NamedTuple

from jaxtyping import Array, Bool, Float

from fedjax_ssl.federated import Setup, Step
from fedjax_ssl.keys import named_key
from fedjax_ssl.objectives import vat_direction, vat_loss


class Adversarial(NamedTuple):
    """The loss, and the scores of the inputs as they are."""

    loss: Float[Array, ""]
    logits: Float[Array, "b K"]


def adversarial_loss(
    setup: Setup, step: Step, inputs: Float[Array, "b ..."], mask: Bool[Array, " b"], radius: float | Array
) -> Adversarial:
    """KL(p(x) || p(x + r)) for the perturbation r of length `radius` that changes the predictions most.

    Batch statistics and the same dropout in every pass; the running statistics are not touched.

    Args:
        setup: the run.
        step: gives network and key.
        inputs: as the network sees them.
        mask: rows that are real.
        radius: of the perturbation, over all numbers of an input.
    """

    def predict(seen: Float[Array, "b ..."]) -> Float[Array, "b K"]:
        key = named_key(step.key, "dropout")
        return setup.model.apply(step.params, step.model_state, seen, train=True, key=key, mask=mask)[0].logits

    perturbation = vat_direction(predict, inputs, named_key(step.key, "direction"), radius, mask=mask)
    logits = predict(inputs)
    return Adversarial(vat_loss(logits, predict(inputs + perturbation), mask), logits)
