"""A local step of one parameter group, for those who wrap it: what it starts from and leaves."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from fedjax_ssl.federated.method import Losses, Snapshot, Step, Term
from fedjax_ssl.federated.packing import Packed, Packing
from fedjax_ssl.models import Outputs

PyTree = Any


class LocalStep(NamedTuple):
    """One local step of one parameter group before it is taken, as `wrap_step` sees it.

    A wrapper may change it before it hands it on, and what the step has left afterwards.

    Example:
        >>> def smaller(step):  # a `Stage.wrap_step`: half of every gradient
        ...     def halved(at):
        ...         loss, gradient, losses = at.gradient(at)
        ...         return loss, jax.tree.map(lambda x: x / 2, gradient), losses
        ...     return lambda at: step(at._replace(gradient=lambda _: halved(at)))
    """

    inputs: Step  # client, batch, key and number of the step; nothing of a forward pass
    terms: tuple[Term, ...]  # that move the group
    weights: Packed  # of the group, before the step
    optimizer: PyTree  # the group's state of the local optimizer, before the step
    packing: Packing  # of the weights
    unravel: Callable[[Array], PyTree]  # batch statistics in one vector -> their tree
    gradient: "Callable[[LocalStep], tuple[Array, Packed, Losses]]"
    # ^ -> (loss, gradient of the weights, losses); by default of the sum of all losses
    correct: Callable[[Packed, Packed], Packed]
    # ^ (gradient, weights) -> gradient; by default as the federated optimizer corrects it
    forward: Callable[..., tuple[dict[str, Array], dict[str, Outputs], PyTree]]
    # ^ as `fedjax_ssl.federated.forward.forward_views`, the default
    run: Callable[..., Losses]  # the engine's part of `evaluate`

    def evaluate(
        self, weights: Packed, terms: tuple[Term, ...], earlier: dict[str, Outputs] | None = None
    ) -> Losses:
        """Run a forward pass with these weights and compute the losses of these terms on it.

        Args:
            weights: of the group.
            terms: the losses; not all of them have to move the group.
            earlier: outputs of an earlier pass of the same step, for `Step.earlier`.
        """
        return self.run(self, weights, terms, earlier)

    def network(self, taken: "StepTaken") -> Snapshot:
        """Return the group's parameters and the batch statistics after a step."""
        return Snapshot(self.packing.unpack(taken.weights), self.unravel(taken.model_state))

    def with_network(self, taken: "StepTaken", network: Snapshot) -> "StepTaken":
        """Return what a step has left, with another network to go on with."""
        return taken._replace(
            weights=self.packing.pack(network.params),
            model_state=ravel_pytree(network.model_state)[0],
        )


class StepTaken(NamedTuple):
    """What a local step of one parameter group leaves."""

    weights: Packed  # of the group
    optimizer: PyTree  # the group's state of the local optimizer
    model_state: Array  # batch statistics, in one vector
    local: dict[str, PyTree]  # local states, by term
    loss: Float[Array, ""]
    outputs: dict[str, Outputs]  # of the forward pass, by view


TakeStep = Callable[[LocalStep], StepTaken]


def plain_gradient(at: LocalStep) -> tuple[Array, Packed, Losses]:
    """Compute the loss of all terms and its gradient, as `LocalStep.gradient`."""

    def objective(w: Packed) -> tuple[Array, Losses]:
        losses = at.evaluate(w, at.terms)
        return losses.total(at.terms), losses

    (loss, losses), gradient = jax.value_and_grad(objective, has_aux=True)(at.weights)
    return loss, gradient, losses
