"""Several terms in one local step, on one sampler of batches."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import jax.numpy as jnp

from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated import Needs, Recipe, ServerState, Setup, Stage, Step, Term, Training
from fedjax_ssl.federated.client import loss_of
from fedjax_ssl.federated.contract import ForLog, Metrics
from fedjax_ssl.federated.recipe import in_words
from fedjax_ssl.federated.sampler import known_epochs, labelled_epochs, paired_batches, passes
from fedjax_ssl.methods.parts.terms import LABELLED, UNLABELLED


class Part(NamedTuple):
    """A term of a composition, which reads the streams "labelled" and "unlabelled"."""

    term: Term
    labels: tuple[str, ...] = ()
    # ^ kinds of labels, of which the term needs at least one, see `FederatedData.kinds`
    counts_labels: bool = False
    # ^ it is a loss on these labels, and so only one term of a composition may have them
    init: Callable[[ServerState, FederatedData], ServerState] | None = None
    # ^ the same as in `Recipe`
    sends: tuple[str, ...] = ()  # the same as in `Recipe`
    name: str = ""  # name in messages and metrics
    after: int = 0  # rounds of the run before it joins the others
    rise: int = 0  # rounds in which its weight then rises to its full value


def composition(setup: Setup, parts: Sequence[Part], unlabelled_ratio: int = 1) -> Recipe:
    """Return the method that minimizes the sum of the parts' weighted losses.

    A round has the parts that have begun; a new stage begins whenever other parts do. With a part
    that reads unlabelled examples, a local step has `setup.batch_size` labelled examples and
    `unlabelled_ratio` times as many unlabelled ones; otherwise it trains in epochs over the
    labelled ones. If a part learns from weak labels, weakly labelled examples are in both streams.

    Args:
        setup: the run.
        parts: the terms. The first one that logs metrics has them under plain names; names of later
            ones begin with the part's name.
        unlabelled_ratio: unlabelled examples per labelled one in a step.

    Raises:
        ValueError: two parts are losses on the same labels, no part learns from labels, a part
            needs other batches, or no part begins at the start.
    """
    _check(parts)
    weak = any({"coarse", "sets"} & {*part.labels} for part in parts if part.counts_labels)
    logging = [part.name for part in parts if part.term.log.diagnose is not ForLog().diagnose]
    terms = [_with_its_metrics(_rising(part), part.name, logging[:1]) for part in parts]
    stages = []
    for begin, end in pairwise((*sorted({part.after for part in parts}), None)):
        assert begin is not None
        there = tuple(term for part, term in zip(parts, terms, strict=True) if part.after <= begin)
        stage = _stage(setup, there, weak, unlabelled_ratio)
        stages.append(stage if end is None else stage._replace(rounds=end - begin))

    def init(state: ServerState, data: FederatedData) -> ServerState:
        for part in parts:
            state = state if part.init is None else part.init(state, data)
        return state

    def check(data: FederatedData) -> list[str]:
        there = data.kinds()
        for part in parts:
            if part.labels and not {*part.labels} & {*there}:
                raise ValueError(
                    f"the part {part.name!r} learns from {in_words(Needs(part.labels))}, and this "
                    f"federation has {in_words(Needs(there, True))}; leave the part out"
                )
        return []

    kinds = tuple(dict.fromkeys(kind for part in parts for kind in part.labels))
    return Recipe(
        setup,
        tuple(stages),
        needs=Needs(kinds) if kinds else Needs(),
        init=init,
        check=check,
        sends=tuple(sent for part in parts for sent in part.sends),
    )


def _check(parts: Sequence[Part]) -> None:
    """Raise ValueError if the terms do not fit together."""
    if first := min(part.after for part in parts):
        raise ValueError(f"all parts join after {first} rounds or later; let one have after=0")
    counted: dict[str, str] = {}
    streams = set[str]()
    for part in parts:
        own = {view.stream for view in part.term.views}
        if other := sorted(own - {LABELLED, UNLABELLED}):
            raise ValueError(
                f"the part {part.name!r} reads the stream {other[0]!r}, and a composition draws "
                f"{LABELLED!r} and {UNLABELLED!r} alone"
            )
        streams |= own
        for kind in part.labels if part.counts_labels else ():
            if kind in counted:
                raise ValueError(
                    f"the parts {counted[kind]!r} and {part.name!r} both have a loss on "
                    f"{in_words(Needs((kind,)))}; leave one of them out"
                )
            counted[kind] = part.name
    if LABELLED not in streams:
        raise ValueError(
            f"no part of {', '.join(part.name for part in parts)} learns from labels; add "
            "supervised, or channels for weak labels too"
        )


def _stage(setup: Setup, terms: tuple[Term, ...], weak: bool, unlabelled_ratio: int) -> Stage:
    """Return the stage of these terms, with the batches that they need."""
    reads_unlabelled = any(view.stream == UNLABELLED for term in terms for view in term.views)
    size = setup.batch_size
    if reads_unlabelled:
        sizes = (size, unlabelled_ratio * size)
        bounds = (setup.max_labelled, setup.max_unlabelled)
        steps = passes(*sizes, setup.local_epochs, *bounds)
        known = setup.max_known if weak else None
        sampler = paired_batches(*sizes, steps, *bounds, max_known=known)
    elif weak:
        sampler = known_epochs(size, setup.local_epochs, setup.max_known)
    else:
        sampler = labelled_epochs(size, setup.local_epochs, setup.max_labelled)
    quota = "proportional" if reads_unlabelled else "only"
    stage = Stage(Training(terms, sampler), labelled_quota=quota)
    return stage._replace(count_labels=lambda clients: clients.num_known) if weak else stage


def _rising(part: Part) -> Term:
    """Return a term whose weight rises from round to round, to its full value in the last round of
    the rise.
    """
    term = part.term
    if not part.rise:
        return term

    def loss(step: Step) -> Any:
        value, local = loss_of(term, step)
        since = step.now.round
        assert since is not None, "in training it is known"
        share = jnp.clip((since + 1 - part.after) / part.rise, 0.0, 1.0)
        return share.astype(value.dtype) * value, local

    return term._replace(loss=loss)


def _with_its_metrics(term: Term, name: str, plain: list[str]) -> Term:
    """Put the part's name in front of its metrics, unless they have plain names."""
    if name in plain:
        return term

    def diagnose(*given: Any) -> Metrics:
        return {f"{name}/{metric}": value for metric, value in term.log.diagnose(*given).items()}

    return term._replace(log=term.log._replace(diagnose=diagnose))
