"""Clients that are absent from a round, or drop out of it.

The draw depends on run, round and client, never on the method, so methods with the same seed lose
the same clients. Shapes: C clients, p of a cohort.
"""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key

from fedjax_ssl.checks import In, check_choices, checked
from fedjax_ssl.errors import UserError
from fedjax_ssl.federated.client_states import without_examples
from fedjax_ssl.federated.contract import Client, Cohort, Now, RoundContext
from fedjax_ssl.keys import named_key

# Moment at which a client drops out: before it sends anything, after codes are compared, after
# scores are propagated, or after local training. If a method compares no codes, the middle two are
# the same.
LOST_WHEN = ("start", "codes", "scores", "training")
BEFORE_TRAINING = ("codes", "scores")


class Participation(NamedTuple):
    """Reliability of clients; `Setup.participation` is None if all clients are reliable.

    Example:
        >>> from fedjax_ssl.federated import participation
        >>> half = participation(probability=0.5)
        >>> half.happens("available", 0.5, jax.random.key(0), 0, jnp.arange(10)).shape
        (10,)
    """

    probability: float | Array | None = None  # probability that a client is available; None: always
    lost: float | Array | None = None  # probability that it drops out; None: never
    lost_when: str = "training"  # moment of the loss, one of `LOST_WHEN`

    def happens(
        self,
        name: str,
        probability: float | Array,
        run_key: Key[Array, ""],
        number: int | Int[Array, ""],
        ids: Int[Array, " n"],
    ) -> Bool[Array, " n"]:
        """Draw for each client whether something happens in a round.

        Args:
            name: name of the event, which separates its draws from others.
            probability: probability for each client.
            run_key: the run's.
            number: rounds before this one.
            ids: the clients'.
        """
        key = jax.random.fold_in(named_key(run_key, f"participation {name}"), number)
        drawn = jax.vmap(lambda client: jax.random.uniform(jax.random.fold_in(key, client)))(ids)
        return drawn < probability

    def available(self, run_key: Key[Array, ""], number: Int[Array, ""], clients: Client) -> Client:
        """Return all C clients; absent ones have no examples."""
        if self.probability is None:
            return clients
        there = self.happens("available", self.probability, run_key, number, clients.id)
        return without_examples(clients, there)

    def remaining(
        self, run_key: Key[Array, ""], number: Int[Array, ""], cohort: Cohort, num_clients: int
    ) -> Cohort:
        """Return the cohort without clients that are lost before they send anything: their slots
        are empty.
        """
        if self.lost is None or self.lost_when != "start":
            return cohort
        lost = self.happens("lost", self.lost, run_key, number, cohort.ids)
        ids = jnp.sort(jnp.where(cohort.valid & ~lost, cohort.ids, num_clients))
        return Cohort(ids, ids < num_clients)

    def left(self, context: RoundContext) -> Bool[Array, " p"] | None:
        """Return the mask of clients that are lost between their first message and their training;
        None if clients are never lost then.
        """
        if self.lost is None or self.lost_when not in BEFORE_TRAINING:
            return None
        assert context.round is not None, "clients are drawn in rounds"
        return self.happens("lost", self.lost, context.run_key, context.round, context.clients.id)

    def staying(self, context: RoundContext) -> Client:
        """Return the cohort in which the clients of `left` have no examples."""
        left = self.left(context)
        return context.clients if left is None else without_examples(context.clients, ~left)

    def lost_after_training(self, now: Now, ids: Int[Array, " n"]) -> Bool[Array, " n"]:
        """Return the mask of clients that are lost after they have trained."""
        if self.lost is None or self.lost_when != "training":
            return jnp.zeros(ids.shape, bool)
        assert now.run_key is not None and now.round is not None, "clients train in rounds"
        return self.happens("lost", self.lost, now.run_key, now.round, ids)


@checked
def participation(
    *,
    probability: Annotated[float | Array | None, In("[0, 1]")] = None,
    lost: Annotated[float | Array | None, In("[0, 1]")] = None,
    lost_when: str = "training",
) -> Participation | None:
    """Return the reliability of clients; None if every client is reliable.

    Args:
        probability: probability that a client is available in a round; the cohort is drawn from the
            available ones.
        lost: probability that a client of the cohort drops out.
        lost_when: before it sends anything ("start"), after codes are compared ("codes"), after
            scores are propagated ("scores"), or after "training".

    Raises:
        ValueError: a setting that cannot be used.
    """
    check_choices(LOST_WHEN, lost_when=lost_when)
    if isinstance(probability, int | float) and probability == 0:
        raise UserError("probability is 0, so that no client is ever there")
    if isinstance(lost, int | float) and lost == 1:
        raise UserError("lost is 1, so that nothing of any client ever arrives")
    if probability is None and lost is None:
        return None
    return Participation(probability, lost, lost_when)
