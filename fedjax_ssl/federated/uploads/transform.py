"""Upload transforms: pure functions between what a client sends and the sum over the clients.

In the manner of optax: a transform has a state and two functions, and `chain` puts several
together. Clipping, noise, sparse messages and lost uploads are transforms. A transform sees the
whole upload, and gives back one of the same form. What travels beside the upload (`beside` and
`report` of `EVERYTHING`) no transform sees at the client; a run is refused where anything leaves a
client that one of its transforms does not name in `covers`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Key

from fedjax_ssl.errors import ConfigError, did_you_mean
from fedjax_ssl.federated.contract import ClientResult, RoundContext
from fedjax_ssl.federated.messages import Sums, Upload
from fedjax_ssl.federated.optimizers import Grouped
from fedjax_ssl.own_code import check_arguments

PyTree = Any
_Message = TypeVar("_Message", Upload, Sums)
# All that may leave a client: the parts of an upload, where "means" are `Upload.averages` of terms
# that say `AtClient.in_sum`, and "terms" what else terms upload; things sent beside it, before
# local training or after the average (XCLP's codes); what the federated optimizer reports beside
# the change, made of the upload after the transforms (SCAFFOLD's variates, FedNova's steps).
EVERYTHING = frozenset(
    ("update", "statistics", "optimizer", "terms", "means", "weight", "beside", "report")
)
REPORTED = {"report": ("what the federated optimizer (config.federated.name) reports",)}


class UploadTransform(NamedTuple):
    """A change of what clients send.

    Example:
        >>> def at_client(key, upload, trained, state):
        ...     return upload._replace(arrived=upload.arrived & (trained.num_steps > 10))
        >>> transform = UploadTransform("enough_work", at_client=at_client, covers=EVERYTHING)
        >>> chain(transform, identity()).name
        'enough_work'
    """

    name: str
    init: Callable[[Grouped], PyTree] = lambda params: ()
    # ^ shared parameters -> state at the server, which every client is sent
    at_client: Callable[[Key[Array, ""], Upload, ClientResult, PyTree], Upload] | None = None
    # ^ (key of client and round, upload, the client after training, state) -> upload; None: it
    # stays as it is
    at_server: (
        Callable[[Key[Array, ""], Sums, RoundContext, PyTree], tuple[Sums, PyTree]] | None
    ) = None
    # ^ (key of the round, sums over the cohort, round, state) -> (sums, state); None: as they are
    covers: frozenset[str] = frozenset()
    # ^ parts of `EVERYTHING` that it treats, or may leave as they are
    tallies: tuple[str, ...] = ()
    # ^ names of numbers that `at_client` sets in `Upload.tallies`; `at_server` gets their sums
    check: Callable[[Any, Mapping[str, Sequence[str]]], None] | None = None
    # ^ (`Recipe`, what leaves clients as `check_covers` takes it); raises ValueError for a method
    # that it cannot be used with


def identity() -> UploadTransform:
    """Return the transform that changes nothing."""
    return UploadTransform("", covers=EVERYTHING)


def chain(*transforms: UploadTransform) -> UploadTransform:
    """Put transforms together: the first one sees what the client sends, the last one's result
    arrives. Sums go through them in the same order.

    Raises:
        ValueError: `covers` names what is not of `EVERYTHING`; or, when a round is traced, a
            transform returns another form than it was given.
    """
    for one in transforms:
        _check_names(one)
        _check_functions(one)
    parts = [one for one in transforms if one.at_client or one.at_server]
    if not parts:
        return identity()

    def at_client(key: Array, upload: Upload, trained: ClientResult, states: PyTree) -> Upload:
        for place, (one, state) in enumerate(zip(parts, states, strict=True)):
            if one.at_client is not None:
                made = one.at_client(jax.random.fold_in(key, place), upload, trained, state)
                upload = _same_form(f"{_named(one)}, at_client", upload, made)
        return upload

    def at_server(
        key: Array, summed: Sums, context: RoundContext, states: PyTree
    ) -> tuple[Sums, PyTree]:
        after = []
        for place, (one, state) in enumerate(zip(parts, states, strict=True)):
            if one.at_server is not None:
                made = one.at_server(jax.random.fold_in(key, place), summed, context, state)
                summed, state = _checked_pair(one, summed, state, made)
            after.append(state)
        return summed, tuple(after)

    return UploadTransform(
        ", ".join(one.name for one in parts),
        init=lambda params: tuple(one.init(params) for one in parts),
        at_client=at_client if any(one.at_client for one in parts) else None,
        at_server=at_server if any(one.at_server for one in parts) else None,
        covers=frozenset.intersection(*(frozenset(one.covers) for one in parts)),
        tallies=tuple(name for one in parts for name in one.tallies),
    )


def check_covers(transforms: Iterable[UploadTransform], sent: Mapping[str, Sequence[str]]) -> None:
    """Raise ValueError where clients send more than a transform covers.

    Args:
        transforms: the run's own; those of a method know what it sends.
        sent: what leaves clients, of `EVERYTHING` -> names of it.
    """
    for one in transforms:
        if left := uncovered(sent, one.covers):
            covered = _listed(sorted(one.covers)) or "nothing"
            more = _listed([name for names in left.values() for name in names])
            parts = _listed([repr(part) for part in left])
            raise ConfigError(
                f"config.uploads: {one.name!r} covers {covered}, but clients also send {more}, "
                "which it would leave unchanged. Use another method or federated optimizer, or a "
                f"transform whose covers names {parts} too"
            )


def uncovered(
    sent: Mapping[str, Sequence[str]], covers: Collection[str]
) -> dict[str, Sequence[str]]:
    """Return what clients send beside what is covered.

    Args:
        sent: as `check_covers` takes it.
        covers: names of `EVERYTHING`.
    """
    return {part: names for part, names in sent.items() if names and part not in covers}


def _check_functions(transform: UploadTransform) -> None:
    """Raise ValueError where a function of a transform cannot be called as it will be."""
    says = _named(transform)
    check_arguments(f"{says}, init", transform.init, ("params",))
    if transform.at_client is not None:
        taken = ("key", "upload", "trained", "state")
        check_arguments(f"{says}, at_client", transform.at_client, taken)
    if transform.at_server is not None:
        taken = ("key", "summed", "context", "state")
        check_arguments(f"{says}, at_server", transform.at_server, taken)


def _check_names(transform: UploadTransform) -> None:
    """Raise ValueError where `covers` names what is not there."""
    if isinstance(transform.covers, str):
        raise ConfigError(
            f"{_named(transform)}: covers is the text {transform.covers!r}; it has to be a set of "
            f"names: frozenset({{{transform.covers!r}}})"
        )
    unknown = sorted(set(transform.covers) - EVERYTHING)
    if unknown:
        raise ConfigError(
            f"{_named(transform)}: covers names {_listed([repr(name) for name in unknown])}, which "
            f"clients never send.{did_you_mean(unknown[0], sorted(EVERYTHING))} "
            f"Allowed: {', '.join(sorted(EVERYTHING))}"
        )


def _checked_pair(
    transform: UploadTransform, summed: Sums, state: PyTree, made: Any
) -> tuple[Sums, PyTree]:
    """Return what a transform made of sums and its state, once both have the form of before."""
    says = f"{_named(transform)}, at_server"
    if not isinstance(made, tuple) or hasattr(made, "_fields") or len(made) != 2:
        raise ConfigError(f"{says}: expected (Sums, state), got {_kind(made)}")
    after, new_state = made
    _compare(says, "its state", state, new_state)
    return _same_form(says, summed, after), new_state


def _same_form(says: str, given: _Message, made: Any) -> _Message:
    """Return what a transform made, once every field has the form of what was given."""
    wanted = type(given)
    if not isinstance(made, wanted):
        article = "an" if wanted is Upload else "the"
        raise ConfigError(f"{says}: expected {article} {wanted.__name__}, got {_kind(made)}")
    for field in wanted._fields:
        _compare(says, f"the field {field!r}", getattr(given, field), getattr(made, field))
    return made


def _compare(says: str, what: str, given: PyTree, made: PyTree) -> None:
    """Raise ValueError where two trees differ in structure, shapes or types of numbers."""
    before = dict(jax.tree.leaves_with_path(given))
    after = dict(jax.tree.leaves_with_path(made))
    for path in dict.fromkeys((*before, *after)):
        expected = _form(before[path]) if path in before else "nothing"
        got = _form(after[path]) if path in after else "nothing"
        if expected != got:
            place = f" at {jax.tree_util.keystr(path)}" if path else ""
            raise ConfigError(f"{says}: {what} changed{place}: expected {expected}, got {got}")
    wanted: Any = jax.tree.structure(given)
    found: Any = jax.tree.structure(made)
    if wanted != found:
        raise ConfigError(f"{says}: {what} changed: expected the structure {wanted}, got {found}")


def _form(leaf: Any) -> str:
    """Describe a leaf: float32[3,4], say, or the type of what is no array."""
    try:
        found = jax.typeof(leaf)
    except TypeError:
        return _kind(leaf)
    return f"{found.dtype}[{','.join(map(str, found.shape))}]"


def _kind(value: Any) -> str:
    return "None" if value is None else type(value).__name__


def _named(transform: UploadTransform) -> str:
    """Name a transform as messages begin with it."""
    return f"upload transform {transform.name!r} (of config.uploads, or of the method)"


def _listed(names: Sequence[str]) -> str:
    """Put names into a sentence: "a, b and c"."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def is_finite(tree: PyTree) -> Bool[Array, ""]:
    """Return whether all numbers of a tree are finite."""
    finite = jnp.ones((), bool)
    for values in jax.tree.leaves(tree):
        finite = finite & jnp.all(jnp.isfinite(values))
    return finite
