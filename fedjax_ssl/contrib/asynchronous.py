"""Uploads that arrive rounds after they were sent, and a server that waits for a number of them.

The server keeps sums of uploads under way, by the round of sending and the round of arrival. The
staleness of an upload is the number of server steps since the client received its model; without an
arrival there is no step. The server stores as many models as the square of the longest delay, and
each client of a round as many as the longest delay. Shapes: D, the longest delay.

References:
    Nguyen et al., Federated learning with buffered asynchronous aggregation (FedBuff), AISTATS
    2022: a step of the server every K arrivals, differences times (1 + staleness)^-1/2.
"""

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from fedjax_ssl.checks import Whole, checked
from fedjax_ssl.errors import ConfigError
from fedjax_ssl.federated import (
    ClientResult,
    FederatedOptimizer,
    Grouped,
    Recipe,
    RoundContext,
    Total,
    Upload,
    mean_scale,
    what_leaves,
)
from fedjax_ssl.federated.uploads import UploadTransform
from fedjax_ssl.keys import named_key
from fedjax_ssl.methods.parts.setting_types import Share

_LATE = "late"  # name in `Upload.averages`


class Parcel(NamedTuple):
    """Sums over uploads that travel together; every array may have further leading axes."""

    update: Grouped  # sum of changes times weights
    statistics: Float[Array, "... s"]  # sum of statistics times weights
    weights: dict[str, Float[Array, "..."]]  # sums of weights, by group
    weight: Float[Array, "..."]  # sum of the weights of `statistics`
    number: Float[Array, "..."]  # number of uploads


class UnderWay(NamedTuple):
    """Uploads of earlier rounds that the server has not used yet."""

    sent: Parcel  # [D, D]: sent i + 1 rounds ago, to arrive j + 1 rounds after that
    steps: Float[Array, " D"]  # steps of the server since that round
    waiting: Parcel  # uploads that arrived since the last step


@checked
def asynchronous(
    recipe: Recipe,
    *,
    late: Share = 0.5,
    delay: Annotated[int, Whole(1)] = 2,
    buffer: Annotated[int, Whole(1)] = 1,
) -> Recipe:
    """Let uploads arrive rounds later, and the server wait for a number of them (FedBuff).

    Between steps the model does not change, except that a federated optimizer with momentum moves
    on in rounds without a step.

    Args:
        recipe: recipe of any method whose clients send changes of one model, and nothing else.
        late: probability that an upload is late.
        delay: D; a late upload takes 1 to D rounds, uniformly.
        buffer: K; the server steps at the end of a round once this many uploads have arrived, with
            all of them.

    Raises:
        ConfigError: clients also send something that cannot be late, or are averaged in another
            way.
    """
    _refuse(recipe)
    _, model_state = jax.eval_shape(recipe.setup.model.init, jax.random.key(0))
    size = sum(leaf.size for leaf in jax.tree.leaves(model_state))
    transform = late_uploads(late, delay, buffer, size)
    return recipe._replace(uploads=(*recipe.uploads, transform))


def _refuse(recipe: Recipe) -> None:
    """Refuse a recipe whose clients send more than changes of one model."""
    leaves = what_leaves(recipe)
    setup = recipe.setup
    optimizer = setup.federated_optimizer
    more = [*leaves["terms"], *leaves["beside"], *leaves["optimizer"], *leaves["report"]]
    begin = "config.around=asynchronous is for changes of one model, but "
    if more:
        raise ConfigError(f"{begin}clients also send {', '.join(more)}; use another method")
    plain = FederatedOptimizer._field_defaults
    if optimizer.alone or optimizer.num_groups > 1 or optimizer.add is not plain["add"]:
        raise ConfigError(
            f"{begin}this federated optimizer has several or weighs each in its own way; use "
            "another config.federated.name, such as fedavg"
        )
    if setup.combine_uploads is not None:
        raise ConfigError(
            f"{begin}config.sum needs each upload by itself; use config.sum.name=mean"
        )


def late_uploads(late: float | Array, delay: int, buffer: int, statistics: int) -> UploadTransform:
    """Return the transform that holds uploads back, see `asynchronous`.

    Args:
        late: probability that an upload is late; may be traced.
        delay: D.
        buffer: K.
        statistics: numbers of the batch statistics.
    """

    def init(params: Grouped) -> UnderWay:
        def empty(*axes: int) -> Parcel:
            def zeros(tree: Any) -> Any:
                return jax.tree.map(lambda x: jnp.zeros((*axes, *x.shape), x.dtype), tree)

            weight = jnp.zeros(axes, jnp.result_type(float))
            return Parcel(
                zeros(params),
                jnp.zeros((*axes, statistics), weight.dtype),
                dict.fromkeys(params, weight),
                weight,
                weight,
            )

        steps = jnp.zeros(delay, jnp.result_type(float))
        return UnderWay(empty(delay, delay), steps, empty())

    def at_client(
        key: Key[Array, ""], upload: Upload, trained: ClientResult, state: UnderWay
    ) -> Upload:
        is_late = jax.random.bernoulli(named_key(key, "late"), late)
        rounds = jax.random.randint(named_key(key, "delay"), (), 1, delay + 1)
        weight = upload.weight
        due = (is_late & (jnp.arange(1, delay + 1) == rounds)).astype(weight.dtype)
        now = (~is_late).astype(weight.dtype)
        # Averages are summed times the weight.
        one = mean_scale(weight)
        averages = {
            "update": jax.tree.map(lambda x: jnp.multiply.outer(due, x), upload.update),
            "statistics": jnp.multiply.outer(due, upload.statistics),
            "weight": due,
            "number": one * due,
            "on_time": one * now,
        }
        return upload._replace(
            update=jax.tree.map(lambda x: now * x, upload.update),
            statistics=now * upload.statistics,
            averages={**upload.averages, _LATE: averages},
        )

    def at_server(
        key: Key[Array, ""], total: Total, context: RoundContext, state: UnderWay
    ) -> tuple[Total, UnderWay]:
        later = total.averages[_LATE]
        weight = total.weight
        groups = total.weights.items()
        sent = Parcel(
            later["update"],
            later["statistics"],
            {group: jnp.where(whole > 0, later["weight"], 0.0) for group, whole in groups},
            later["weight"],
            jnp.round(later["number"]),
        )
        now = Parcel(
            total.update,
            total.statistics,
            {group: whole - jnp.sum(sent.weights[group]) for group, whole in groups},
            weight - jnp.sum(sent.weight),
            jnp.round(later["on_time"]),
        )
        arrived = jax.tree.map(jnp.add, now, _due(state))
        waiting = jax.tree.map(jnp.add, state.waiting, arrived)
        ready = waiting.number >= buffer
        taken = jax.tree.map(lambda x: jnp.where(ready, x, jnp.zeros_like(x)), waiting)

        def older(new: Array, old: Array) -> Array:
            return jnp.concatenate([new[None], old[:-1]])

        after = UnderWay(
            sent=jax.tree.map(older, sent, state.sent),
            steps=older(jnp.zeros_like(state.steps[0]), state.steps) + ready.astype(weight.dtype),
            waiting=jax.tree.map(jnp.subtract, waiting, taken),
        )
        total = total._replace(
            update=taken.update,
            statistics=taken.statistics,
            weights=taken.weights,
            weight=taken.weight,
        )
        return total, after

    return UploadTransform("asynchronous", init, at_client, at_server)


def _due(state: UnderWay) -> Parcel:
    """Return the sum of the uploads that arrive in this round, with changes scaled by staleness."""
    discount = (1.0 + state.steps) ** -0.5

    def arriving(values: Array) -> Array:
        return jnp.moveaxis(jnp.diagonal(values), -1, 0)  # i + 1 rounds ago, after i + 1 rounds

    def shortened(values: Array) -> Array:
        each = arriving(values)
        return jnp.tensordot(discount.astype(each.dtype), each, axes=1)

    def whole(values: Array) -> Array:
        return jnp.sum(arriving(values), axis=0)

    sent = state.sent
    return Parcel(
        jax.tree.map(shortened, sent.update),
        shortened(sent.statistics),
        jax.tree.map(whole, sent.weights),
        whole(sent.weight),
        whole(sent.number),
    )
