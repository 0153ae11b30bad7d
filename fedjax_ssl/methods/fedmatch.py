"""FedMatch: agreement with the models of similar clients, and separate weights for labelled and
unlabelled data.

Every weight is a sum sigma + psi. Labelled examples move sigma alone, and unlabelled ones psi
alone:

    L_s(sigma) = lambda_s CE(y, p(x))
    L_u(psi) = lambda_a CE(vote(u), p(strong u)) + lambda_i 1/H sum_j KL[p_{h_j}(u) || p(u)]
               + lambda_L2 ||sigma - psi||^2 + lambda_L1 ||psi||_1

The first two terms of L_u are means over the examples whose largest probability reaches a
threshold. The client and its helpers h_1 .. h_H vote; a helper is another client's psi with the
sigma that this client received. With labels at the clients, they train both parts: in every step
first sigma, then psi with the new sigma. With labels at the server it trains sigma before the
clients, and they train psi.

Both sides know a client's last upload, so only entries that differ from it by more than a threshold
are sent. Helpers are the clients whose last uploads give nearly the same output for one image of
noise.

Shapes: C clients, p cohort slots, H helpers, K classes. A model is a dict of its parts, "sigma" and
"psi".

References:
    Jeong, Yoon, Yang, Hwang, Federated semi-supervised learning with inter-client consistency and
    disjoint learning, ICLR 2021, arXiv 2006.12097. Details that the paper leaves open follow the
    authors' code; see docs/methods/fedmatch.md.
"""

from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fedjax_ssl.checks import In, Whole, checked, is_zero
from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated import (
    Needs,
    ParameterGroups,
    Recipe,
    RoundContext,
    RoundResult,
    Stage,
    Step,
    Term,
    Traffic,
    Training,
    map_rows,
)
from fedjax_ssl.federated.contract import (
    AtClient,
    AtServer,
    Broadcast,
    Client,
    ClientResult,
    Count,
    ForLog,
    Metrics,
    Params,
)
from fedjax_ssl.federated.messages import Upload
from fedjax_ssl.federated.packing import packing
from fedjax_ssl.federated.setup import Setup
from fedjax_ssl.federated.traffic import BYTES_PER_NUMBER, count
from fedjax_ssl.federated.uploads import UploadTransform
from fedjax_ssl.keys import named_key
from fedjax_ssl.methods.parts import setting_types as kinds
from fedjax_ssl.methods.parts.matched_batches import Bounds, matched_batches
from fedjax_ssl.methods.parts.sparse_messages import merge, message_bytes, num_sent
from fedjax_ssl.methods.parts.terms import (
    PseudoLabels,
    augmented_view,
    diagnose_pseudo_labels,
    supervised_term,
)
from fedjax_ssl.methods.parts.views_and_teachers import strong_view
from fedjax_ssl.models import count_parameters
from fedjax_ssl.objectives import (
    agreement_vote,
    batch_cross_entropy,
    cross_entropy,
    inter_client_kl,
    l1_norm,
)

# The paper's value is learning rate times l2_weight.
_FIELDS = {
    "rounds": 60,
    "method.l2_weight": 10 / 30,
    "method.helper_interval": 2,
    "method.server_batch_size": 10,
    "optimizer.learning_rate": 0.03,
}
RECOMMENDED = {
    "fedmatch": {
        "per_class": _FIELDS,
        "server": {**_FIELDS, "method.unlabelled_batch_size": 20},
    }
}

TERM = "fedmatch"
SIGMA = "sigma"
PSI = "psi"
HELPERS = "helpers"
DECOMPOSITIONS = {
    "full": (SIGMA, PSI),
    "none": (SIGMA,),
    "without_sigma": (PSI,),
    "without_psi": (SIGMA,),
}
PRESET: Any = None  # Defaults of the preset, which may depend on the place of the labels.
# Setting -> its value with labels at the clients, and with labels at the server.
_PAPER: dict[str, tuple[float, float]] = {
    "threshold": (0.85, 0.85),
    "supervised_weight": (10.0, 10.0),
    "l1_weight": (1e-4, 1e-5),
    "l1_threshold": (5e-6, 1e-5),
    "delta_threshold": (5e-5, 1e-5),
    "patience": (5, 5),
    "clip_eps": (0.0, 0.0),
}
PRESETS = {
    "paper": _PAPER,
    "code": _PAPER | {"threshold": (0.75, 0.75), "patience": (5, 20), "clip_eps": (1e-7, 1e-7)},
}


@checked
@dataclass(frozen=True)
class FedMatch:
    """Settings of FedMatch.

    Attributes:
        preset: values of the settings that are None: "paper" or "code" (threshold 0.75, patience 20
            with labels at the server, clip_eps 1e-7).
        labels_at: place where labels are trained on: "server", "clients", or "auto": the server, if
            it has labels.
        supervised_weight: lambda_s; 10.
        agreement_weight: lambda_a; the paper's lambda_ICCS is this and the next one.
        kl_weight: lambda_i.
        l2_weight: lambda_L2, of a sum over all weights.
        l1_weight: lambda_L1, likewise; 1e-4 with labels at the clients and 1e-5 at the server.
        threshold: tau, of the largest probability for the example without strong augmentation;
            0.85.
        num_helpers: H; fewer if fewer clients have taken part so far. 0: no inter-client loss.
        helper_interval: rounds between two with helpers.
        clip_eps: lower bound of probabilities in cross-entropy and divergence; 0: none.
        decomposition: "full"; "none": one part and neither L2 nor L1; "without_sigma",
            "without_psi": that part is 0 and both losses move the other one. A single part starts
            as (1 + psi_factor) sigma.
        psi_factor: psi starts as this times sigma.
        l1_threshold: in evaluation, weights of psi up to this size count as 0; 5e-6 with labels at
            the clients, 1e-5 at the server.
        delta_threshold: weights that differ by no more are not sent; 5e-5 and 1e-5.
        unlabelled_batch_size: unlabelled examples per step; see `matched_batches`.
        server_batch_size: labelled examples per step at the server.
        server_epochs: epochs at the server before every round.
        shuffle: draw a new order of examples in every epoch, in place of the stored one.
        lr_schedule: "client": divide a client's learning rate by 3 if the loss of its model on
            validation examples does not fall, checked once per participation; "none": never.
        patience: evaluations without an improvement before the rate falls; 5.
    """

    preset: Literal["paper", "code"] = "paper"
    labels_at: Literal["auto", "clients", "server"] = "auto"
    supervised_weight: kinds.Weight = PRESET
    agreement_weight: kinds.Weight = 1e-2
    kl_weight: kinds.Weight = 1e-2
    l2_weight: kinds.Weight = 10.0
    l1_weight: kinds.Weight = PRESET
    threshold: kinds.Share = PRESET
    num_helpers: Annotated[int, Whole(0, 1000)] = 2
    helper_interval: kinds.Count = 10
    clip_eps: kinds.Decay = PRESET
    decomposition: Literal["full", "none", "without_sigma", "without_psi"] = "full"
    psi_factor: Annotated[float | Array, In("(-1, inf)")] = 0.2
    l1_threshold: kinds.Weight = PRESET
    delta_threshold: kinds.Weight = PRESET
    unlabelled_batch_size: Annotated[int | None, Whole(1)] = None
    server_batch_size: kinds.Count = 100
    server_epochs: kinds.Count = 1
    shuffle: bool = False
    lr_schedule: Literal["client", "none"] = "client"
    patience: kinds.Count = PRESET

    @property
    def at_server(self) -> bool:
        """Return whether the server trains on labels."""
        return self.labels_at == "server"

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the model: labelled examples move the first, unlabelled ones the last."""
        return DECOMPOSITIONS[self.decomposition]

    @property
    def uploaded(self) -> tuple[str, ...]:
        """The parts that clients train."""
        return self.parts[-1:] if self.at_server else self.parts

    def in_run(self, setup: Setup) -> "FedMatch":
        """Return the settings for a run: the place of labels, and the preset's values in place of
        None.
        """
        at_server = setup.max_server > 0 if self.labels_at == "auto" else self.labels_at == "server"
        said: dict[str, Any] = {
            n: v[at_server] for n, v in PRESETS[self.preset].items() if getattr(self, n) is None
        }
        return replace(self, labels_at="server" if at_server else "clients", **said)

    def split(self, params: Any) -> Params:
        """Return the first model: sigma and psi = psi_factor sigma, or a single part that makes the
        same network.
        """
        scale = {SIGMA: 1.0, PSI: self.psi_factor}
        if len(self.parts) == 1:
            scale = {self.parts[0]: 1.0 + self.psi_factor}
        return {part: jax.tree.map(lambda w, by=scale[part]: by * w, params) for part in self.parts}

    def visible(self, parts: Params) -> Params:
        """Return a model in which the entries of psi of size `l1_threshold` and less are 0."""

        def sparse(w: Array) -> Array:
            return jnp.where(jnp.abs(w) > self.l1_threshold, w, jnp.zeros_like(w))

        if PSI not in parts:
            return parts
        return {**parts, PSI: jax.tree.map(sparse, parts[PSI])}

    def network(self, parts: Params) -> PyTree:
        """Return the network that evaluation uses."""
        return combine(self.visible(parts))

    def changed(self, new: PyTree, old: PyTree) -> PyTree:
        """Return the mask of entries that differ enough to be sent, a tree of bool arrays."""
        return jax.tree.map(lambda a, b: jnp.abs(a - b) > self.delta_threshold, new, old)


def fedmatch(setup: Setup, settings: FedMatch) -> Recipe:
    """FedMatch: labelled examples move one part of the weights, unlabelled ones and similar
    clients' models the other.

    The paper's optimizer is SGD at 1e-3 with `config.optimizer.batch_size` = 10 labelled examples
    per step.

    Args:
        setup: the run.
        settings: the method's own.

    Raises:
        ValueError: for a setting outside its range, or where learning rate times l2_weight is 1 or
            more.
    """
    settings = settings.in_run(setup)
    notes = _check_pull(setup, settings)
    sampler = matched_batches(
        setup.batch_size,
        settings.unlabelled_batch_size,
        setup.local_epochs,
        Bounds(setup.max_labelled, setup.min_labelled, setup.max_unlabelled),
        settings.shuffle,
    )
    clients = Training((_unsupervised(setup, settings),), sampler)
    if settings.lr_schedule == "client":
        clients = clients._replace(rate=lambda one: _remembered(one).plateau.factor)
    supervised = supervised_term(setup)._replace(
        weight=settings.supervised_weight, group=settings.parts[0]
    )
    server = None
    if settings.at_server:
        server = _server_training(setup, settings, supervised)
    else:
        clients = clients._replace(terms=(supervised, *clients.terms))
    stage = Stage(clients, server, when=("before",), labelled_quota="any")

    def check(data: FederatedData) -> list[str]:
        if settings.lr_schedule == "none":
            return notes
        looks = int((setup.rounds or 0) * setup.cohort_size / data.index.shape[0])
        return notes + _may_end_early(settings, looks)

    return Recipe(
        setup,
        (stage,),
        ParameterGroups(settings.parts, split=settings.split, combine=combine),
        Needs(("server",) if settings.at_server else ("labels",)),
        network=lambda state: (settings.network(state.params), state.model_state),
        uploads=(sparse_messages(settings),),
        check=check,
    )


def _check_pull(setup: Setup, settings: FedMatch) -> list[str]:
    """Compare the pull of a step on psi, towards sigma, with the paper's: psi - sigma is multiplied
    by 1 - 2 eta l2_weight.
    """
    rate = setup.learning_rate(jnp.zeros((), jnp.int32))
    l2_weight = settings.l2_weight
    known = not isinstance(rate, jax.core.Tracer) and not isinstance(l2_weight, jax.core.Tracer)
    if not known or settings.decomposition == "none" or is_zero(l2_weight) or not float(rate):
        return []
    product = round(float(rate) * float(l2_weight), 6)  # the learning rate has 32 bits
    said = (
        f"the learning rate {float(rate):g} times l2_weight {float(l2_weight):g} is {product:g}, "
        "in the paper 0.01"
    )
    if product >= 1:
        raise ValueError(f"{said}; from 1 on psi diverges. Lower one of them")
    swings = "; from 0.5 on psi swings around sigma" if product >= 0.5 else ""
    note = f"{said}{swings}: config.method.l2_weight={0.01 / float(rate):.3g} keeps the paper's"
    return [] if 0.005 <= product <= 0.02 else [note]


def combine(parts: Params) -> PyTree:
    """Return the network's parameters, the sum of the parts."""
    return reduce(partial(jax.tree.map, jnp.add), parts.values())


class Consistency(NamedTuple):
    """Losses on a batch of unlabelled examples, each a mean over the confident ones; 0 if there are
    none.
    """

    cross_entropy: Float[Array, ""]  # prediction for the strong view, against the vote
    divergence: Float[Array, ""]  # prediction for the plain view, from the helpers'
    labels: Int[Array, " n"]  # the vote; -1 if the model is not confident
    confidence: Float[Array, " n"]


def consistency(
    plain_logits: Float[Array, "n K"],
    strong_logits: Float[Array, "n K"],
    helper_probs: Float[Array, "H n K"],
    available: Bool[Array, " H"],
    mask: Bool[Array, " n"],
    threshold: float | Array,
    clip_eps: float | Array = 0.0,
) -> Consistency:
    """Inter-client consistency (equations 2 to 4), without its weights. Votes and helpers are
    constants.
    """
    q = jax.nn.softmax(plain_logits)
    log_q = jnp.where(
        clip_eps > 0, jnp.log(jnp.maximum(q, clip_eps)), jax.nn.log_softmax(plain_logits)
    )
    confidence = jax.lax.stop_gradient(jnp.max(q, axis=1))
    confident = mask & (confidence >= threshold)
    vote = jnp.where(confident, agreement_vote(q, helper_probs, available), -1)
    # -log max(p, eps) is the smaller of these two.
    ceiling = jnp.where(clip_eps > 0, -jnp.log(clip_eps), jnp.inf)
    pseudo = jnp.minimum(cross_entropy(strong_logits, vote), ceiling)
    number = jnp.maximum(jnp.sum(confident, dtype=q.dtype), 1.0)
    divergence = jnp.where(confident, inter_client_kl(log_q, helper_probs, available), 0.0)
    return Consistency(jnp.sum(pseudo) / number, jnp.sum(divergence) / number, vote, confidence)


def regularizer(
    parts: Params, l2_weight: float | Array, l1_weight: float | Array
) -> Float[Array, ""]:
    """Return lambda_L2 ||sigma - psi||^2 + lambda_L1 ||psi||_1, sums over all weights; a missing
    part counts as 0.
    """
    difference = reduce(partial(jax.tree.map, jnp.subtract), parts.values())
    squares = sum(
        (jnp.sum(jnp.square(w)) for w in jax.tree.leaves(difference)), start=jnp.zeros(())
    )
    return l2_weight * squares + (l1_weight * l1_norm(parts[PSI]) if PSI in parts else 0.0)


class Remembered(NamedTuple):
    """State that a client keeps, if it has its own learning rate."""

    plateau: "Plateau"  # state of its learning rate
    accuracy: Float[Array, ""]  # accuracy of its model on the validation examples


def _unsupervised(setup: Setup, settings: FedMatch) -> Term:
    """Return the term of L_u, with its messages between server and clients and its state at
    both.
    """
    plain = augmented_view(setup, "unlabelled")
    strong = strong_view(setup)
    own_rate = settings.lr_schedule == "client"

    def loss(step: Step) -> tuple[Array, PseudoLabels]:
        batch = step.streams["unlabelled"]
        found = consistency(
            step.outputs[plain.name].logits,
            step.outputs[strong.name].logits,
            *_ask_helpers(setup, settings, step, step.inputs[plain.name]),
            batch.mask,
            settings.threshold,
            settings.clip_eps,
        )
        total = (
            settings.agreement_weight * found.cross_entropy + settings.kl_weight * found.divergence
        )
        if settings.decomposition != "none":
            # With a single part, some steps have no unlabelled rows.
            some = jnp.any(batch.mask).astype(total.dtype)
            total = total + some * regularizer(step.groups, settings.l2_weight, settings.l1_weight)
        # Votes by position in the client's table, for the log.
        place = jnp.where(batch.mask, batch.position, step.local.labels.shape[0])
        confidence = found.confidence.astype(step.local.confidence.dtype)
        votes = PseudoLabels(found.labels, confidence, confidence)
        return total, jax.tree.map(
            lambda table, new: table.at[place].set(new, mode="drop"), step.local, votes
        )

    def init(key: Key[Array, ""], network: PyTree, model_state: PyTree, clients: Client) -> Store:
        many = clients.id.shape[0]
        parts = settings.split(network)
        uploads = jax.tree.map(lambda x: jnp.broadcast_to(x, (many, *x.shape)), parts)
        embeddings = jnp.zeros((many, setup.num_classes), jnp.result_type(float))
        return Store(uploads, jnp.zeros(many, bool), embeddings)

    def prepare(store: Store, context: RoundContext) -> tuple[Broadcast, Store]:
        sent = to_cohort(settings, store, context)
        return Broadcast(sent, helpers_due(settings, context.number)), store

    def keep(network: PyTree, model_state: PyTree, client: Client) -> Remembered:
        return Remembered(first_plateau(settings.patience), jnp.zeros(()))

    def remember(trained: ClientResult) -> Remembered:
        loss, accuracy = validate(setup, settings, trained)
        plateau = _remembered(trained.client).plateau
        return Remembered(next_plateau(plateau, loss, settings.patience), accuracy)

    def start(store: Store, params: PyTree, model_state: PyTree, kept: PyTree) -> PseudoLabels:
        width = setup.max_labelled + setup.max_unlabelled  # no table is wider
        return PseudoLabels(jnp.full(width, -1, jnp.int32), jnp.zeros(width), jnp.zeros(width))

    def diagnose(outcome: RoundResult, truth: Int[Array, "p n"], measured: PseudoLabels) -> Metrics:
        clients = outcome.context.clients
        metrics = {**diagnose_pseudo_labels(measured, truth, clients), **costs(outcome)}
        if own_rate:
            accuracy = outcome.after.clients.terms[TERM].accuracy.at[clients.id].get(mode="clip")
            metrics["client_validation_accuracy"] = jnp.mean(accuracy, where=outcome.counts)
        return metrics

    client = AtClient(start=start, collect=partial(from_client, settings))
    if own_rate:
        client = client._replace(keep=keep, remember=remember)
    server = AtServer(init, prepare, server_update=partial(_stored, setup))
    log = ForLog(
        lambda trained: jax.tree.map(
            lambda votes: votes[: trained.client.rows.shape[0]], trained.local[TERM]
        ),
        diagnose,
        _traffic,
    )
    return Term(
        TERM, (plain, strong), loss, group=settings.parts[-1], server=server, client=client, log=log
    )


def _remembered(client: Client) -> Remembered:
    assert client.kept is not None, "clients of a federation always have a table"
    return client.kept.terms[TERM]


def _ask_helpers(
    setup: Setup, settings: FedMatch, step: Step, inputs: Array
) -> tuple[Float[Array, "H n K"], Bool[Array, " H"]]:
    """Return the helpers' class probabilities, as constants, and the mask of existing helpers.

    A helper is another client's psi with the sigma that this client received, unchanged during the
    round.
    """
    sent: ToClient = step.sent

    def predict(helper: PyTree) -> Float[Array, "n K"]:
        params = combine({**step.start_network.groups, settings.parts[-1]: helper})
        outputs, _ = setup.model.apply(params, step.start_network.model_state, inputs, train=False)
        return jax.nn.softmax(outputs.logits)

    shape = jax.eval_shape(jax.vmap(predict), sent.helpers)
    probs = nobody = jnp.zeros(shape.shape, shape.dtype)
    if settings.num_helpers:
        # Most rounds have no helpers, and then skip their forward passes.
        probs = jax.lax.cond(
            step.shared, lambda: jax.lax.map(predict, sent.helpers), lambda: nobody
        )
    return jax.lax.stop_gradient(probs), sent.available


def helpers_due(settings: FedMatch, number: Int[Array, ""]) -> Bool[Array, ""]:
    """Return whether helpers are sent in this round, which is every `helper_interval`-th, counted
    from 1.
    """
    return (number + 1) % settings.helper_interval == 0


# Messages between server and clients (section 3.3)


class Store(NamedTuple):
    """Uploads of all clients, as the server knows them."""

    uploads: Params  # the last upload of every client, leading axis C; before it, the initial model
    seen: Bool[Array, " C"]  # whether the client has uploaded
    embeddings: Float[Array, "C K"]  # output of the uploaded model for the noise image


class ToClient(NamedTuple):
    """Message to a client in a round; with a leading axis p for the cohort."""

    helpers: PyTree  # [H, ...]
    available: Bool[Array, " H"]
    entries: dict[str, Int[Array, "..."]]  # numbers sent, by part; [H] for the helpers


class FromClient(NamedTuple):
    """Message from a client to the server."""

    parts: Params  # the model as the server knows it
    entries: dict[str, Int[Array, ""]]  # numbers sent, by part


def to_cohort(settings: FedMatch, store: Store, context: RoundContext) -> ToClient:
    """Return the message to every client of the cohort (S2C)."""
    ids = context.clients.id
    part = settings.parts[-1]
    fresh = (context.number == 0) | ~store.seen.at[ids].get(mode="clip")
    held = jax.tree.map(lambda table: table.at[ids].get(mode="clip"), store.uploads)
    chosen, there = nearest_clients(ids, store.embeddings, store.seen, settings.num_helpers)
    there = there & helpers_due(settings, context.number)
    helpers = jax.tree.map(lambda table: table[chosen], store.uploads[part])

    def to_one(
        held: Params, fresh: Bool[Array, ""], helpers: PyTree, there: Bool[Array, " H"]
    ) -> ToClient:
        has = settings.visible(held)
        differs = settings.changed(settings.visible(context.groups), has)
        masks = jax.tree.map(lambda mask: mask | fresh, differs)

        def size_of(raw: PyTree) -> Int[Array, ""]:
            seen = settings.visible({part: raw})[part]
            # If a helper has no weight there, nothing is sent, whatever the client has.
            base = jax.tree.map(lambda h, w: jnp.where(h != 0, w, 0), seen, has[part])
            return num_sent(settings.changed(seen, base))

        sizes = jax.vmap(size_of)(helpers)
        entries = {name: num_sent(mask) for name, mask in masks.items()} | {
            HELPERS: jnp.where(there, sizes, 0)
        }
        return ToClient(helpers, there, entries)

    return jax.vmap(to_one)(held, fresh, helpers, there)


def sparse_messages(settings: FedMatch) -> UploadTransform:
    """Return the transform that makes a trained client's upload sparse (C2S): the upload becomes
    the model that the server knows afterwards, and the term sends it.
    """

    def at_client(
        key: Key[Array, ""], upload: Upload, trained: ClientResult, state: PyTree
    ) -> Upload:
        sent: FromClient = upload.terms[TERM]

        def moved(part: str) -> PyTree:
            packed = packing(sent.parts[part])
            return jax.tree.map(
                jnp.subtract, packed.pack(sent.parts[part]), packed.pack(trained.start_params[part])
            )

        update = {**upload.update, **{part: moved(part) for part in settings.uploaded}}
        return upload._replace(update=update)

    return UploadTransform("sparse messages", at_client=at_client)


def from_client(settings: FedMatch, trained: ClientResult) -> FromClient:
    """Return the model that the server knows afterwards: the client's entries that changed enough,
    and its starting values elsewhere.
    """
    new = {part: trained.groups[part] for part in settings.uploaded}
    old = {part: trained.start_params[part] for part in settings.uploaded}
    masks = settings.changed(settings.visible(new), old)
    parts = {part: merge(masks[part], new[part], old[part]) for part in settings.uploaded}
    entries = {part: num_sent(masks[part]) for part in settings.uploaded}
    return FromClient({**trained.groups, **parts}, entries)


def _stored(setup: Setup, store: Store, outcome: RoundResult) -> Store:
    """Store the uploads, and their class probabilities for the noise image; an upload with values
    that are not finite is ignored.
    """
    context = outcome.context
    shape = jax.eval_shape(setup.normalize, context.inputs[:1]).shape[1:]
    noise = noise_image(named_key(context.run_key, "noise image"), shape)[None]

    def embed(parts: Params) -> Float[Array, " K"]:
        outputs, _ = setup.model.apply(
            combine(parts), outcome.after.model_state, noise, train=False
        )
        return jax.nn.softmax(outputs.logits[0])

    embeddings = jax.lax.map(embed, outcome.uploads.parts)
    sound = outcome.counts & jnp.all(jnp.isfinite(embeddings), axis=1)
    place = jnp.where(sound, context.clients.id, store.seen.shape[0])

    def put(table: Array, rows: Array) -> Array:
        return table.at[place].set(rows.astype(table.dtype), mode="drop")

    new = Store(outcome.uploads.parts, jnp.ones_like(sound), embeddings)
    return jax.tree.map(put, store, new)


def _traffic(outcome: RoundResult) -> Traffic:
    """Count the bytes each way, in place of the model's."""
    valid = outcome.context.valid
    size = count_parameters(next(iter(outcome.before.params.values())))
    numbers = count_parameters(outcome.before.model_state)
    statistics = count(jnp.sum(valid, dtype=jnp.int32), BYTES_PER_NUMBER * numbers)
    to_clients: ToClient = outcome.sent.own

    def total(entries: dict[str, Array], there: dict[str, Array]) -> Count:
        messages = [message_bytes(entries[name], size, there.get(name, valid)) for name in entries]
        return sum(messages, start=statistics)

    down = total(to_clients.entries, {HELPERS: to_clients.available & valid[:, None]})
    return Traffic(down, total(outcome.uploads.entries, {}), model_down=False, model_up=False)


def costs(outcome: RoundResult) -> Metrics:
    """Return S2C and C2S as the paper counts them: numbers sent, divided by the numbers of a model,
    mean over the cohort.

    A model has half as many numbers as there are parameters in sigma and psi; two whole parts cost
    2.
    """
    size = count_parameters(next(iter(outcome.before.params.values())))
    valid = outcome.context.valid
    to_clients: ToClient = outcome.sent.own
    there = to_clients.available.sum(1).astype(jnp.result_type(float))
    metrics: Metrics = {"helpers": jnp.mean(there, where=valid)}
    for way, entries in (("s2c", to_clients.entries), ("c2s", outcome.uploads.entries)):
        numbers = {name: x.reshape(x.shape[0], -1).sum(1) for name, x in entries.items()}
        shares = {name: jnp.mean(x / size, where=valid) for name, x in numbers.items()}
        metrics[way] = reduce(jnp.add, shares.values())
        metrics |= {f"{way}_{name}": share for name, share in shares.items()}
    return metrics


def _server_training(setup: Setup, settings: FedMatch, supervised: Term) -> Training:
    """Return training at the server before the clients: epochs over its labelled examples in stored
    order, with its own learning rate.
    """
    bounds = Bounds(setup.max_server, 1, 0)
    sampler = matched_batches(
        settings.server_batch_size, None, settings.server_epochs, bounds, settings.shuffle
    )
    if settings.lr_schedule == "none":
        return Training((supervised,), sampler)

    def server_update(state: Plateau, outcome: RoundResult) -> Plateau:
        after = next_plateau(state, outcome.uploads[0], settings.patience)
        return jax.tree.map(lambda new, old: jnp.where(outcome.counts[0], new, old), after, state)

    term = supervised._replace(
        server=AtServer(
            init=lambda *_: first_plateau(settings.patience),
            prepare=lambda state, context: (Broadcast(state.factor[None]), state),
            server_update=server_update,
        ),
        client=AtClient(collect=lambda trained: validate(setup, settings, trained)[0]),
    )
    return Training((term,), sampler, rate=lambda client: client.sent[term.name])


# Helpers: clients whose models give nearly the same output for an image of noise, so that no client
# has to share examples

NOISE_MEAN = NOISE_STD = 125 / 255


def nearest_clients(
    clients: Int[Array, " p"],
    embeddings: Float[Array, "C d"],
    known: Bool[Array, " C"],
    number: int,
) -> tuple[Int[Array, "p H"], Bool[Array, "p H"]]:
    """Find the nearest other clients of each client by Euclidean distance, nearest first; of equal
    ones, the lower id first.

    Args:
        clients: ids of the clients that search; a client that is not known gets none, and neither
            does an id out of range.
        embeddings: one for each client.
        known: mask of clients with an embedding.
        number: H.

    Returns:
        Ids, and the mask of valid ones: fewer than H if fewer clients are known.
    """
    ids = jnp.arange(embeddings.shape[0], dtype=jnp.int32)
    own = embeddings.at[clients].get(mode="clip")
    distance = jnp.sum(jnp.square(own[:, None] - embeddings), axis=-1)
    asks = known.at[clients].get(mode="fill", fill_value=False)
    possible = known & (ids != clients[:, None]) & asks[:, None]
    distance = jnp.where(possible, distance, jnp.inf)
    order = jnp.argsort(distance, axis=1, stable=True)[:, :number].astype(jnp.int32)
    there = jnp.take_along_axis(possible, order, axis=1)
    missing = ((0, 0), (0, number - order.shape[1]))
    return jnp.pad(jnp.where(there, order, 0), missing), jnp.pad(there, missing)


def noise_image(key: Key[Array, ""], shape: tuple[int, ...]) -> Float[Array, "*shape"]:
    """Return an image of independent normal values with mean and deviation 125 / 255, truncated to
    [0, 1] as in the code, which gives mean 0.497 and deviation 0.269.

    Args:
        key: typed PRNG key.
        shape: shape of the image.
    """
    dtype = jnp.result_type(float)
    lowest = -NOISE_MEAN / NOISE_STD
    highest = (1 - NOISE_MEAN) / NOISE_STD
    return NOISE_MEAN + NOISE_STD * jax.random.truncated_normal(key, lowest, highest, shape, dtype)


# A learning rate that falls if the loss on validation examples does not: Serra et al., Overcoming
# catastrophic forgetting with hard attention to the task, ICML 2018, without its early end

DIVISOR = 3.0  # divisor of the learning rate
LOWEST = 1e-17  # lowest factor of the learning rate; times 1e-3 it is the code's lowest rate


class Plateau(NamedTuple):
    """State of the schedule."""

    factor: Float[Array, ""]  # factor of the learning rate
    best: Float[Array, ""]  # lowest validation loss so far
    patience: Int[Array, ""]  # evaluations left without an improvement


def first_plateau(patience: int) -> Plateau:
    """Return the state before the first evaluation."""
    dtype = jnp.result_type(float)
    # Not inf: a client that keeps values that are not finite counts as dropped.
    return Plateau(
        jnp.ones((), dtype), jnp.full((), jnp.finfo(dtype).max), jnp.asarray(patience, jnp.int32)
    )


def next_plateau(state: Plateau, loss: Float[Array, ""], patience: int) -> Plateau:
    """Return the state after an evaluation: the rate is divided if the loss stayed above the best
    for `patience` evaluations.
    """
    better = loss < state.best
    left = jnp.where(better, patience, state.patience - 1)
    over = left <= 0
    factor = jnp.where(over, jnp.maximum(state.factor / DIVISOR, LOWEST), state.factor)
    best = jnp.where(better, loss, state.best).astype(state.best.dtype)
    return Plateau(factor, best, jnp.where(over, patience, left).astype(jnp.int32))


def _may_end_early(settings: FedMatch, looks: int) -> list[str]:
    """Return a note that a schedule with more evaluations than the paper's, 10 with patience 5, may
    end learning early.
    """
    patience = settings.patience
    if isinstance(patience, jax.core.Tracer) or looks <= 4 * patience:
        return []
    return [
        f"a learning rate is divided by {DIVISOR:g} where {patience} looks at the "
        f"validation loss bring nothing, and this run has {looks} of them (the paper's have 10): "
        f"learning may end early. config.method.patience={looks // 2} waits as long as the "
        "paper's, lr_schedule='none' never lowers the rate"
    ]


def validate(
    setup: Setup, settings: FedMatch, seen: ClientResult
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return mean cross-entropy and accuracy of a trained model on the federation's validation
    examples.

    Raises:
        ValueError: there are none.
    """
    validation = seen.validation
    assert validation is not None
    if not validation.rows.shape[0]:
        raise ValueError(
            "lr_schedule lowers a learning rate when the loss on validation examples stops "
            "falling, and there are none; hold some out with config.data.validation_fraction, or "
            "set lr_schedule='none'"
        )

    def logits(raw: Array) -> Array:
        inputs = setup.normalize(raw)
        return setup.model.apply(params, seen.model_state, inputs, train=False)[0].logits

    params = settings.network(seen.groups)
    scores = map_rows(logits, seen.inputs, validation.rows, setup.evaluation_batch_size)
    real = jnp.arange(validation.rows.shape[0], dtype=jnp.int32) < validation.num_examples
    right = (jnp.argmax(scores, axis=1).astype(jnp.int32) == validation.labels).astype(scores.dtype)
    loss = batch_cross_entropy(scores, validation.labels, real)
    return jax.lax.stop_gradient(loss), jnp.mean(right, where=real)
