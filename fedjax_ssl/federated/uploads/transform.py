"""Upload transforms: pure functions between a client's upload and the sum over clients.

As in optax, a transform has a state and functions, and `chain` combines several. Clipping, noise,
sparse messages and lost uploads are transforms. A transform sees the whole upload, and gives back
one of the same form.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Key

from fedjax_ssl.errors import ConfigError, naming
from fedjax_ssl.federated.contract import ClientResult, RoundContext
from fedjax_ssl.federated.messages import Total, Upload
from fedjax_ssl.federated.optimizers import Grouped
from fedjax_ssl.own_code import check_arguments

PyTree = Any
_Message = TypeVar("_Message", Upload, Total)


class UploadTransform(NamedTuple):
    """Change of the clients' uploads.

    Example:
        >>> def at_client(key, upload, trained, state):
        ...     return upload._replace(arrived=upload.arrived & (trained.num_steps > 10))
        >>> transform = UploadTransform("enough_work", at_client=at_client)
        >>> chain(transform, identity()).name
        'enough_work'
    """

    name: str
    init: Callable[[Grouped], PyTree] = lambda params: ()
    # ^ shared parameters -> state at the server, which is sent to every client
    at_client: Callable[[Key[Array, ""], Upload, ClientResult, PyTree], Upload] | None = None
    # ^ (key of client and round, upload, the client after training, state) -> upload, with numbers
    # of its own in `averages` under its name if it likes; None: unchanged
    at_server: (
        Callable[[Key[Array, ""], Total, RoundContext, PyTree], tuple[Total, PyTree]] | None
    ) = None
    # ^ (key of the round, sums over the cohort, round, state) -> (sums, state); None: unchanged


def identity() -> UploadTransform:
    """Return the transform that changes nothing."""
    return UploadTransform("")


def chain(*transforms: UploadTransform) -> UploadTransform:
    """Combine transforms: the first one sees the client's upload, and the last one's result
    arrives. Sums go through them in the same order.

    Raises:
        ValueError: while a round is traced, a transform returns another form than its input.
    """
    for one in transforms:
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
        key: Array, total: Total, context: RoundContext, states: PyTree
    ) -> tuple[Total, PyTree]:
        after = []
        for place, (one, state) in enumerate(zip(parts, states, strict=True)):
            if one.at_server is not None:
                made = one.at_server(jax.random.fold_in(key, place), total, context, state)
                total, state = _checked_pair(one, total, state, made)
            after.append(state)
        return total, tuple(after)

    return UploadTransform(
        ", ".join(one.name for one in parts),
        init=lambda params: tuple(one.init(params) for one in parts),
        at_client=at_client if any(one.at_client for one in parts) else None,
        at_server=at_server if any(one.at_server for one in parts) else None,
    )


def _check_functions(transform: UploadTransform) -> None:
    """Raise ValueError if a function of a transform cannot be called with the arguments it will
    get.
    """
    says = _named(transform)
    with naming():  # of the transform, and not of the section that is built
        check_arguments(f"{says}, init", transform.init, ("params",))
        if transform.at_client is not None:
            taken = ("key", "upload", "trained", "state")
            check_arguments(f"{says}, at_client", transform.at_client, taken)
        if transform.at_server is not None:
            taken = ("key", "total", "context", "state")
            check_arguments(f"{says}, at_server", transform.at_server, taken)


def _checked_pair(
    transform: UploadTransform, total: Total, state: PyTree, made: Any
) -> tuple[Total, PyTree]:
    """Return a transform's sums and state, after checking that both kept their form."""
    says = f"{_named(transform)}, at_server"
    if not isinstance(made, tuple) or hasattr(made, "_fields") or len(made) != 2:
        raise ConfigError(f"{says}: expected (Total, state), got {_kind(made)}")
    after, new_state = made
    compare_forms(says, "its state", state, new_state)
    return _same_form(says, total, after), new_state


def _same_form(says: str, given: _Message, made: Any) -> _Message:
    """Return a transform's result, after checking that every field has the form of the input."""
    wanted = type(given)
    if not isinstance(made, wanted):
        article = "an" if wanted is Upload else "the"
        raise ConfigError(f"{says}: expected {article} {wanted.__name__}, got {_kind(made)}")
    for field in wanted._fields:
        before = getattr(given, field)
        after = getattr(made, field)
        if field == "averages":  # terms may add further names here
            after = {name: after[name] for name in before if name in after}
        compare_forms(says, f"the field {field!r}", before, after)
    return made


def compare_forms(says: str, what: str, given: PyTree, made: PyTree) -> None:
    """Raise ValueError if two trees differ in structure, shapes or types of numbers."""
    before = dict(jax.tree.leaves_with_path(given))
    after = dict(jax.tree.leaves_with_path(made))
    for path in dict.fromkeys((*before, *after)):
        expected = form_of(before[path]) if path in before else "nothing"
        got = form_of(after[path]) if path in after else "nothing"
        if expected != got:
            place = f" at {jax.tree_util.keystr(path)}" if path else ""
            raise ConfigError(f"{says}: {what} changed{place}: expected {expected}, got {got}")
    wanted: Any = jax.tree.structure(given)
    found: Any = jax.tree.structure(made)
    if wanted != found:
        raise ConfigError(f"{says}: {what} changed: expected the structure {wanted}, got {found}")


def form_of(leaf: Any) -> str:
    """Describe a leaf, for example float32[3,4], or by its type if it is no array."""
    try:
        found = jax.typeof(leaf)
    except TypeError:
        return _kind(leaf)
    return f"{found.dtype}[{','.join(map(str, found.shape))}]"


def _kind(value: Any) -> str:
    return "None" if value is None else type(value).__name__


def _named(transform: UploadTransform) -> str:
    """Return the start of messages about a transform."""
    return f"upload transform {transform.name!r} (of config.uploads, or of the method)"


def is_finite(tree: PyTree) -> Bool[Array, ""]:
    """Return whether all numbers of a tree are finite."""
    finite = jnp.ones((), bool)
    for values in jax.tree.leaves(tree):
        finite = finite & jnp.all(jnp.isfinite(values))
    return finite
