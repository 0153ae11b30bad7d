"""What FedMatch's server and clients send each other: differences of models, and helpers now and then.

Both sides know what a client uploaded last, so that only entries that differ from it by more than a threshold are sent.
Shapes: C clients, p cohort slots, H helpers, K classes. A model is a dict of its parts, "sigma" and "psi".

Source: Jeong et al., FedMatch, ICLR 2021, arXiv 2006.12097, section 3, and the authors' code for what the paper leaves
open; see docs/methods/fedmatch.md.
"""

from functools import partial, reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from fedjax_ssl.federated import BYTES_PER_NUMBER, ClientResult, RoundContext, RoundResult, Setup, Traffic, count
from fedjax_ssl.federated.method import Metrics, Params
from fedjax_ssl.federated.traffic import Count
from fedjax_ssl.keys import named_key
from fedjax_ssl.methods.parts.nearest_helpers import nearest_clients, noise_image
from fedjax_ssl.methods.parts.sparse_exchange import changed, merge, message_bytes, num_sent, sparse
from fedjax_ssl.models import count_parameters

SIGMA, PSI, HELPERS = "sigma", "psi", "helpers"


class Exchange(NamedTuple):
    """Settings, as `fedjax_ssl.methods.fedmatch` explains them."""

    uploaded: tuple[str, ...]  # parts that clients train
    helper_part: str  # the part that helpers are sent of
    num_helpers: int
    helper_interval: int
    noise: str
    l1_threshold: float | Array
    delta_threshold: float | Array
    c2s_send_sparsified: bool
    s2c_lossy: bool
    first_contact: str
    encoding: str

    def visible(self, parts: Params) -> Params:
        """A model as it is evaluated: without the smallest entries of psi."""
        return {part: sparse(tree, self.l1_threshold) if part == PSI else tree for part, tree in parts.items()}


class Store(NamedTuple):
    """What the server knows of all clients."""

    uploads: Params  # the last one of every client, leading axis C; the initial model before
    seen: Bool[Array, " C"]  # whether there is one
    embeddings: Float[Array, "C K"]  # what the uploaded model said of the noise image


class ToClient(NamedTuple):
    """What a client receives in a round; with a leading axis p for the cohort."""

    helpers: PyTree  # [H, ...]
    available: Bool[Array, " H"]
    entries: dict[str, Int[Array, "..."]]  # numbers that are sent, by part; of each helper [H]
    lossy: tuple[Params, Params] | None  # which entries are sent, and what the client has in place of the others
    rate: Float[Array, ""] | None = None  # factor of the learning rate, where it is the same for all


class Upload(NamedTuple):
    """What a client sends back."""

    parts: Params  # the model as the server has it
    entries: dict[str, Int[Array, ""]]  # numbers that were sent, by part


def combine(parts: Params) -> PyTree:
    """The network's parameters: the sum of the parts."""
    return reduce(partial(jax.tree.map, jnp.add), parts.values())


def empty_store(parts: Params, num_clients: int, num_classes: int) -> Store:
    """Before the first round."""
    uploads = jax.tree.map(lambda x: jnp.broadcast_to(x, (num_clients, *x.shape)), parts)
    embeddings = jnp.zeros((num_clients, num_classes), jnp.result_type(float))
    return Store(uploads, jnp.zeros(num_clients, bool), embeddings)


def helpers_due(exchange: Exchange, number: Int[Array, ""]) -> Bool[Array, ""]:
    """Whether helpers are sent in this round: counted from 1, in every `helper_interval`-th."""
    return (number + 1) % exchange.helper_interval == 0


def to_cohort(exchange: Exchange, store: Store, round: RoundContext) -> ToClient:
    """What every client of the cohort is sent (S2C)."""
    ids, everything = round.clients.id, round.number == 0
    fresh = jnp.full(ids.shape, everything)
    if exchange.first_contact == "dense":
        fresh = fresh | ~store.seen.at[ids].get(mode="clip")
    held = jax.tree.map(lambda table: table.at[ids].get(mode="clip"), store.uploads)
    chosen, there = nearest_clients(ids, store.embeddings, store.seen, exchange.num_helpers)
    there = there & helpers_due(exchange, round.number)
    helpers = jax.tree.map(lambda table: table[chosen], store.uploads[exchange.helper_part])

    def to_one(held: Params, fresh: Bool[Array, ""], helpers: PyTree, there: Bool[Array, " H"]) -> ToClient:
        has = exchange.visible(held)
        masks = changed(exchange.visible(round.groups), has, exchange.delta_threshold)
        masks = jax.tree.map(lambda mask: mask | fresh, masks)

        def helper(raw: PyTree) -> tuple[Int[Array, ""], PyTree]:
            seen = exchange.visible({exchange.helper_part: raw})[exchange.helper_part]
            # Where a helper has no weight nothing is sent, whatever the client has there.
            base = jax.tree.map(lambda h, w: jnp.where(h != 0, w, 0), seen, has[exchange.helper_part])
            mask = changed(seen, base, exchange.delta_threshold)
            return num_sent(mask), merge(mask, raw, base) if exchange.s2c_lossy else raw

        sizes, received = jax.vmap(helper)(helpers)
        entries = {part: num_sent(masks[part]) for part in masks} | {HELPERS: jnp.where(there, sizes, 0)}
        return ToClient(received, there, entries, (masks, held) if exchange.s2c_lossy else None)

    return jax.vmap(to_one)(held, fresh, helpers, there)


def receive(sent: ToClient, parts: Params) -> Params:
    """The model that a client has of the one that was sent, where differences are all that is sent."""
    assert sent.lossy is not None, "only with s2c_lossy"
    masks, held = sent.lossy
    return merge(masks, parts, held)


def upload(exchange: Exchange, trained: ClientResult) -> Params:
    """The parts that a client trained, as the server has them: its own entries where too little changed."""
    masks, new = _changes_up(exchange, trained)
    if exchange.c2s_send_sparsified:
        new = exchange.visible(new)
    return {part: merge(masks[part], new[part], trained.received[part]) for part in exchange.uploaded}


def collect(exchange: Exchange, trained: ClientResult) -> Upload:
    """The same with the count of what was sent (C2S)."""
    masks, _ = _changes_up(exchange, trained)
    return Upload(trained.uploaded, {part: num_sent(masks[part]) for part in exchange.uploaded})


def _changes_up(exchange: Exchange, trained: ClientResult) -> tuple[Params, Params]:
    new = {part: trained.groups[part] for part in exchange.uploaded}
    old = {part: trained.received[part] for part in exchange.uploaded}
    return changed(exchange.visible(new), old, exchange.delta_threshold), new


def server_update(setup: Setup, exchange: Exchange, store: Store, outcome: RoundResult) -> Store:
    """Keeps the uploads, and what each says of the noise image; one that says nothing finite is no upload."""
    round = outcome.round
    shape = jax.eval_shape(setup.normalize, round.inputs[:1]).shape[1:]
    noise = noise_image(named_key(round.run_key, "noise image"), shape, exchange.noise)[None]

    def embed(parts: Params) -> Float[Array, " K"]:
        outputs, _ = setup.model.apply(combine(parts), outcome.after.model_state, noise, train=False)
        return jax.nn.softmax(outputs.logits[0])

    embeddings = jax.lax.map(embed, outcome.uploads.parts)
    sound = outcome.counts & jnp.all(jnp.isfinite(embeddings), axis=1)
    place = jnp.where(sound, round.clients.id, store.seen.shape[0])

    def put(table: Array, rows: Array) -> Array:
        return table.at[place].set(rows.astype(table.dtype), mode="drop")

    new = Store(outcome.uploads.parts, jnp.ones_like(sound), embeddings)
    return jax.tree.map(put, store, new)


def traffic(exchange: Exchange, outcome: RoundResult) -> Traffic:
    """Bytes each way, in place of the model's."""
    valid, size = outcome.round.valid, _size(outcome)
    statistics = count(jnp.sum(valid, dtype=jnp.int32), BYTES_PER_NUMBER * count_parameters(outcome.before.model_state))
    to_clients: ToClient = outcome.sent.own

    def total(entries: dict[str, Array], there: dict[str, Array]) -> Count:
        messages = [message_bytes(entries[name], size, exchange.encoding, there.get(name, valid)) for name in entries]
        return sum(messages, start=statistics)

    down = total(to_clients.entries, {HELPERS: to_clients.available & valid[:, None]})
    return Traffic(down, total(outcome.uploads.entries, {}), model_down=False, model_up=False)


def costs(outcome: RoundResult) -> Metrics:
    """S2C and C2S as the paper counts them: numbers sent, by those of a model, mean over the cohort.

    A model has half as many numbers as there are parameters in sigma and psi; two whole parts cost 2.
    """
    size, metrics = _size(outcome), {}
    sent = {"s2c": outcome.sent.own.entries, "c2s": outcome.uploads.entries}
    for way, entries in sent.items():
        shares = {
            name: jnp.mean(values.reshape(values.shape[0], -1).sum(1) / size, where=outcome.round.valid)
            for name, values in entries.items()
        }
        metrics[way] = sum(shares.values())
        metrics |= {f"{way}_{name}": share for name, share in shares.items()}
    there = outcome.sent.own.available.sum(1).astype(jnp.result_type(float))
    return {**metrics, "helpers": jnp.mean(there, where=outcome.round.valid)}


def _size(outcome: RoundResult) -> int:
    """Numbers of one part, which are those of the network."""
    return count_parameters(next(iter(outcome.before.params.values())))
