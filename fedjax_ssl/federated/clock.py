"""A simulated clock: the seconds that clients take for their steps and their messages."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from fedjax_ssl.checks import check_numbers
from fedjax_ssl.errors import ConfigError, UserError
from fedjax_ssl.federated.by_client import ClientNumbers, numbers_by_client
from fedjax_ssl.federated.setup import Facts


class Clock(NamedTuple):
    """How fast clients are, and how long the server waits for them."""

    per_step: ClientNumbers | None = None  # seconds of a local step; None: none
    per_byte: ClientNumbers | None = None  # seconds of a byte, down or up; None: none
    deadline: float | Array | None = None  # seconds of a round; None: the server waits for all

    def seconds(
        self,
        run_key: Key[Array, ""],
        number: Int[Array, ""],
        client: Int[Array, ""],
        steps: Int[Array, ""],
        sent: Float[Array, ""] | float,
    ) -> Float[Array, ""]:
        """Return the seconds from the start of a round until a client's upload is there.

        Args:
            run_key: the run's.
            number: rounds before this one.
            client: its id.
            steps: local steps that it takes.
            sent: bytes that go down to it and up from it.
        """
        place = run_key, number, client[None]
        total = jnp.zeros(())
        if self.per_step is not None:
            total = steps.astype(total.dtype) * self.per_step.of(*place)[0]
        if self.per_byte is not None:
            total = total + sent * self.per_byte.of(*place)[0]
        return total

    def of_round(
        self, seconds: Float[Array, " p"], lost: Bool[Array, " p"], waited: Bool[Array, " p"]
    ) -> Float[Array, ""]:
        """Return the seconds of a round: those of the last client that it waits for, or the
        deadline where a client is lost.

        Args:
            seconds: of each client.
            lost: nothing of it arrives.
            waited: its upload is of this round.
        """
        last = jnp.max(jnp.where(waited, seconds, 0.0), initial=0.0)
        if self.deadline is None:
            return last
        return jnp.where(jnp.any(lost), self.deadline, last)

    def check(self, steps: int, sent: int) -> None:
        """Raise ValueError where no client is ever there before the deadline.

        Args:
            steps: local steps of the client that takes the fewest.
            sent: bytes that go down to it and up from it, at least.
        """
        if not isinstance(self.deadline, (int, float)):
            return
        fastest = 0.0
        for number, each in ((steps, self.per_step), (sent, self.per_byte)):
            fastest += 0.0 if each is None else number * each.least
        if fastest > self.deadline:
            raise ConfigError(
                f"config.participation.deadline is {self.deadline:g} seconds; the fastest client "
                f"takes {fastest:g} ({steps} local steps, {sent:,} bytes), so that nothing ever "
                "arrives"
            )


def clock(
    facts: Facts,
    *,
    seconds_per_step: float | Array | str | None = None,
    seconds_per_byte: float | Array | str | None = None,
    deadline: float | Array | None = None,
) -> Clock | None:
    """Read how fast clients are.

    Args:
        facts: clients and rounds of the run.
        seconds_per_step: of a client: a number, a distribution over clients or a file, see
            `numbers_by_client`; None: none.
        seconds_per_byte: as the one before, down or up.
        deadline: seconds of a round; who takes longer is lost. None: the server waits.

    Returns:
        None where clients take no time.

    Raises:
        ValueError: a deadline without a time that clients take, or a setting that cannot be used.
    """

    def read(name: str, given: float | Array | str | None) -> ClientNumbers | None:
        return None if given is None else numbers_by_client(name, given, "[0, inf)", facts)

    if seconds_per_step is None and seconds_per_byte is None:
        if deadline is not None:
            raise UserError(
                f"deadline is {deadline} seconds, but clients take none; give seconds_per_step or "
                "seconds_per_byte"
            )
        return None
    if deadline is not None:
        check_numbers("(0, inf)", deadline=deadline)
    speed = read("seconds_per_step", seconds_per_step)
    return Clock(speed, read("seconds_per_byte", seconds_per_byte), deadline)
