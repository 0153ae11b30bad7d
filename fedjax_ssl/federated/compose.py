"""Composition of recipes: several methods learn in one local step, under names of their own."""

from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple, cast

import jax.numpy as jnp
from jaxtyping import Array

from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated.cohort import QUOTAS
from fedjax_ssl.federated.local_step import LocalStep, StepTaken, TakeStep
from fedjax_ssl.federated.messages import Sums, Upload
from fedjax_ssl.federated.method import (
    Client,
    ClientResult,
    Kept,
    Metrics,
    Now,
    RoundContext,
    RoundResult,
    Sampler,
    Schedule,
    ServerState,
    ServerTraining,
    Stage,
    Step,
    Term,
    View,
)
from fedjax_ssl.federated.recipe import Needs, Recipe, check_is_recipe
from fedjax_ssl.federated.uploads.transform import UploadTransform
from fedjax_ssl.keys import named_key

# A tuple that the engine hands to functions of a method -> its fields that go by names of terms,
# views or streams.
_BY_NAME: dict[type, tuple[str, ...]] = {
    Client: ("sent",),
    ClientResult: ("local",),
    Kept: ("terms",),
    Now: ("shared",),
    RoundContext: (),
    RoundResult: (),
    ServerState: ("terms",),
    LocalStep: (),
    Step: ("outputs", "inputs", "streams", "earlier"),
    StepTaken: ("outputs",),
    Sums: ("averages",),
    Upload: ("terms", "averages"),
}


def compose(first: Recipe, *others: Recipe) -> Recipe:
    """Return a method in whose local steps the losses of several are added up.

    The first part keeps its names and predicts. Terms and metrics of another one get its name in
    front, as "protofssl/protofssl", and so do its streams and views: its batches are drawn beside
    those of the others; where one has more steps in a round, the others have steps without a row. A
    part whose stage has a sampler that is there, or none, looks at the batches that are there, and
    shares the views of the same name and stream at no cost. A client is drawn into a cohort where
    one of the parts would draw it.

    Raises:
        ValueError: the recipes do not fit each other, and why.

    Example:
        >>> def both(setup: fs.Setup) -> fs.Recipe:
        ...     "FixMatch, and FedUL on the sets of the same clients."
        ...     parts = (fs.methods.recipe(name, setup) for name in ("fixmatch", "fedul"))
        ...     return fs.compose(*parts)
        >>> _ = fs.register("method", "both", both)
        >>> fs.load_config("digits", {"method.name": "both"}).method.name
        'both'
    """
    for one in (first, *others):
        check_is_recipe("fs.compose", one)
    return reduce(_both, others, first)


def _both(first: Recipe, other: Recipe) -> Recipe:
    _check_fit(first, other)
    prefix = _free_prefix(first, other.name or "part")
    scope = _Scope(prefix, prefix)
    pairs = zip(first.stages, other.stages, strict=True)
    pretraining = first.pretraining
    if other.pretraining is not None:
        server = scope.of_server(None, other.pretraining.server)
        pretraining = other.pretraining._replace(server=server)
    checks = [recipe.check for recipe in (first, other) if recipe.check is not None]

    def init(state: ServerState, data: FederatedData) -> ServerState:
        state = first.init(state, data)
        return scope.kept(other.init(scope.seen(state), data), state)

    def after_average(before: ServerState, after: ServerState, data: FederatedData) -> ServerState:
        after = first.after_average(before, after, data)
        return scope.kept(other.after_average(scope.seen(before), scope.seen(after), data), after)

    def check(data: FederatedData) -> list[str]:
        return [line for one in checks for line in one(data)]

    return first._replace(
        name=f"{first.name}+{other.name}",
        stages=tuple(scope.of_stage(*pair) for pair in pairs),
        needs=Needs(
            tuple(dict.fromkeys((*first.needs.kinds, *other.needs.kinds))),
            first.needs.every_one or other.needs.every_one,
        ),
        pretraining=pretraining,
        init=init,
        after_average=after_average,
        class_scores=first.class_scores or other.class_scores,
        sends=tuple(dict.fromkeys((*first.sends, *other.sends))),
        in_sum="",
        uploads=(*first.uploads, *map(scope.of_uploads, other.uploads)),
        check=check if checks else None,
        looks_at_all=first.looks_at_all or other.looks_at_all,
    )


def _check_fit(first: Recipe, other: Recipe) -> None:
    """Raise ValueError where two recipes cannot train together, with the reason."""
    fields = zip(first.setup._fields, first.setup, other.setup, strict=True)
    differ = [name for name, one, two in fields if one is not two]
    lengths = [tuple(stage.rounds for stage in one.stages) for one in (first, other)]
    pairs = tuple(zip(first.stages, other.stages, strict=False))
    stages = (*first.stages, *other.stages)
    nothing: Any = None
    servers = [
        tuple(
            stage.server and stage.server._replace(terms=(), sampler=nothing)
            for stage in one.stages
        )
        for one in (first, other)
    ]
    reasons = (
        (
            differ,
            f"their setups differ in {', '.join(differ)}; make both from one setup, and leave out "
            "a method that changes its setup, as alone does",
        ),
        (
            lengths[0] != lengths[1],
            f"their stages have {lengths[0]} and {lengths[1]} rounds (None: to the end); give them "
            "the same, for example by warmup_rounds",
        ),
        (first.groups != other.groups, "their parameter groups differ"),
        (first.on_host or other.on_host, "a round that calls host functions stands alone"),
        (any(stage.kinds for stage in stages), "one has several kinds of clients in a stage"),
        (
            any(stage.wrap_step for stage in stages),
            "one takes local steps of its own",
        ),
        (other.receive, "the second loses something on the way down; put it first"),
        (first.pretraining and other.pretraining, "both train before round 0"),
        (any(a.weigh and b.weigh for a, b in pairs), "both weigh clients in the average"),
        (any(a.rate and b.rate for a, b in pairs), "both set a client's learning rate"),
        (
            any(a and b and a != b for a, b in zip(*servers, strict=False)),
            "both train at the server, but not in the same way",
        ),
        (
            any(a.around_clients and b.around_clients for a, b in pairs),
            "both wrap the training of clients",
        ),
        (
            any(a.terms and a.sampler is None for a, _ in pairs),
            "the first has no batches of its own; put it second",
        ),
    )
    for wrong, reason in reasons:
        if wrong:
            raise ValueError(
                f"{other.name or 'a recipe'} cannot be composed with "
                f"{first.name or 'another one'}: {reason}"
            )


def _free_prefix(first: Recipe, name: str) -> str:
    """Return the prefix of this name, or with a number, that no term of the first part has."""
    taken = {term.name.partition("/")[0] for stage in first.stages for term in stage.terms}
    names = (name, *(f"{name}{number}" for number in range(2, len(taken) + 3)))
    return next(f"{one}/" for one in names if one not in taken)


class _Scope(NamedTuple):
    """A part's names in a composition: its own, with a prefix in front."""

    prefix: str  # of its terms and metrics
    batches: str  # of its streams and views; that of another part where it has the same batches

    def seen(self, thing: Any) -> Any:
        """Return what the engine hands out as the part knows it: under its own names too."""
        by_name = _BY_NAME.get(type(thing))
        if by_name is None:
            return thing
        fields = {
            field: self.named(value) if field in by_name else self.seen(value)
            for field, value in thing._asdict().items()
        }
        return type(thing)(**fields)

    def named(self, things: Any) -> Any:
        """Return things by name under the part's own names too; anything else as it is."""
        if not isinstance(things, dict):
            return things
        own = dict(things)
        for prefix in (self.batches, self.prefix):
            size = len(prefix)
            own |= {name[size:]: one for name, one in things.items() if name.startswith(prefix)}
        return own

    def kept(self, new: ServerState, old: ServerState) -> ServerState:
        """Return the part's new state under the names of the composition."""
        own = {
            f"{self.prefix}{name}": state
            for name, state in new.terms.items()
            if f"{self.prefix}{name}" in old.terms or name not in old.terms
        }
        clients = new.clients._replace(terms=old.clients.terms)
        return new._replace(terms={**old.terms, **own}, clients=clients)

    def sees(self, function: Callable | None, translate: Callable | None = None) -> Any:
        """Return a function of the part that is given the composition's names."""
        if function is None:
            return None
        return lambda *given: function(*map(translate or self.seen, given))

    def sees_names(self, function: Callable | None) -> Any:
        """Return the same of a function whose arguments by name are dictionaries."""
        return self.sees(function, lambda one: self.named(self.seen(one)))

    def of_functions(self, functions: Any) -> Any:
        """Translate all functions of a term at the server, at a client or for the log."""
        plain = functions._field_defaults
        changed = {
            name: self.sees(function)
            for name, function in functions._asdict().items()
            if function is not plain[name]  # the engine knows those that do nothing
        }
        return functions._replace(**changed)

    def of_wrapper(self, wrap: Callable[[TakeStep, str], TakeStep] | None) -> Any:
        """Give a wrapper of a local step what it looks at under its own names too."""
        if wrap is None:
            return None

        def wrapped(step: TakeStep, name: str) -> TakeStep:
            inner = wrap(lambda at: self.seen(step(at)), name)
            return lambda at: inner(self.seen(at))

        return wrapped

    def of_uploads(self, transform: UploadTransform) -> UploadTransform:
        """Give a transform what the part's terms upload under their own names."""

        def at_client(key: Array, upload: Upload, trained: ClientResult, state: Any) -> Upload:
            change = cast(Callable, transform.at_client)
            return self.back(change(key, self.seen(upload), self.seen(trained), state), upload)

        def at_server(key: Array, summed: Sums, context: RoundContext, state: Any) -> Any:
            change = cast(Callable, transform.at_server)
            made = change(key, self.seen(summed), self.seen(context), state)
            if type(made) is not tuple or len(made) != 2:
                return made  # `chain` says what is wrong
            return self.back(made[0], summed), made[1]

        return transform._replace(
            at_client=at_client if transform.at_client else None,
            at_server=at_server if transform.at_server else None,
        )

    def back(self, after: Any, before: Any) -> Any:
        """Return a message that the part changed under the names of the composition; `chain` says
        what is wrong where it returned something else.
        """
        if not isinstance(after, type(before)):
            return after
        size = len(self.prefix)
        fields = {}
        for field in _BY_NAME[type(before)]:
            old = getattr(before, field)
            new = getattr(after, field)
            others = {name: one for name, one in old.items() if not name.startswith(self.prefix)}
            mine = [name for name in old if name not in others and name[size:] in (new or {})]
            fields[field] = {**others, **{name: new[name[size:]] for name in mine}}
        return after._replace(**fields)

    def of_term(self, term: Term, there: dict[str, View]) -> Term:
        """Put a term under the part's names; `there`: views that it may share."""
        log = self.of_functions(term.log)
        client = self.of_functions(term.client)

        def diagnose(*given: Any) -> Metrics:
            found = term.log.diagnose(*map(self.seen, given))
            return {f"{self.prefix}{name}": value for name, value in found.items()}

        return term._replace(
            name=f"{self.prefix}{term.name}",
            views=tuple(self.of_view(view, there) for view in term.views),
            loss=self.sees(term.loss),
            server=self.of_functions(term.server),
            client=client._replace(wrap_step=self.of_wrapper(term.client.wrap_step)),
            log=log._replace(diagnose=diagnose),
        )

    def of_stage(self, first: Stage, own: Stage) -> Stage:
        """Add what the part does in a stage to what is done there."""
        server = first.server
        if own.server is not None:
            server = self.of_server(first.server, own.server)
        scope = self.beside(first.sampler, own.sampler)
        quota = min(first.labelled_quota, own.labelled_quota, key=QUOTAS.index)
        count_labels = first.count_labels
        if own.count_labels is not count_labels:

            def count_labels(clients: Client) -> Array:
                return jnp.maximum(first.count_labels(clients), own.count_labels(clients))

        return scope.added(first, own)._replace(
            labelled_quota=quota,
            count_labels=count_labels,
            server=server,
            rate=first.rate or scope.sees(own.rate),
            weigh=first.weigh or scope.sees_names(own.weigh),
            around_clients=first.around_clients or own.around_clients,
        )

    def of_server(self, first: ServerTraining | None, own: ServerTraining) -> ServerTraining:
        """Add what the part learns at the server to what is learned there."""
        nothing: Any = None
        before = first or own._replace(terms=(), sampler=nothing)
        return self.beside(before.sampler, own.sampler).added(before, own)

    def beside(self, there: Sampler | None, own: Sampler | None) -> "_Scope":
        """Return the names that the part has where others have these batches already."""
        if there is None:
            return self
        prefixes = [prefix for prefix, one in _parts_of(there) if own is None or own is one]
        return self._replace(batches=prefixes[0]) if prefixes else self

    def added(self, first: Any, own: Any) -> Any:
        """Add the part's terms and batches to those of a stage, or of training at the server."""
        there = {view.name: view for term in first.terms for view in term.views}
        return first._replace(
            terms=(*first.terms, *(self.of_term(term, there) for term in own.terms)),
            sampler=self.of_samplers(first.sampler, own.sampler),
        )

    def of_view(self, view: View, there: dict[str, View]) -> View:
        """Put a view under the part's names, or return the one that is there."""
        stream = f"{self.batches}{view.stream}"
        shared = there.get(f"{self.batches}{view.name}")
        if shared is not None and shared.stream == stream:
            return shared
        prefix = self.batches if shared is None else self.prefix
        return View(
            f"{prefix}{view.name}", stream, self.sees_names(view.build), self.sees_names(view.mask)
        )

    def of_samplers(self, first: Sampler | None, own: Sampler | None) -> Sampler | None:
        """Return the batches of both, those of the part in streams under its names."""
        if own is None or self.batches != self.prefix:
            return first

        def renamed(tables: dict[str, Array]) -> dict[str, Array]:
            return {f"{self.prefix}{name}": table for name, table in tables.items()}

        def schedule(key: Array, client: Client, now: Now) -> Schedule:
            # Other draws than those of the first part, which may have a sampler of the same kind.
            drawn = own.schedule(named_key(key, self.prefix), self.seen(client), self.seen(now))
            drawn = Schedule(renamed(drawn.positions), renamed(drawn.masks), drawn.num_steps)
            return drawn if first is None else _joined(first.schedule(key, client, now), drawn)

        def going_on(steps: int) -> Sampler:
            samplers = (one and one.going_on and one.going_on(steps) for one in (first, own))
            return cast(Sampler, self.of_samplers(*samplers))

        both = [one for one in (first, own) if one is not None]
        return Sampler(
            schedule,
            reads_sent=any(one.reads_sent for one in both),
            equal_steps=own.equal_steps and first is None,
            going_on=going_on if all(one.going_on for one in both) else None,
            parts=(*(() if first is None else _parts_of(first)), (self.prefix, own)),
        )


def _parts_of(sampler: Sampler) -> tuple[tuple[str, Sampler], ...]:
    """Return the samplers that are side by side in one, with the prefix of their streams."""
    return sampler.parts or (("", sampler),)


def _joined(first: Schedule, other: Schedule) -> Schedule:
    """Put two schedules side by side; the shorter one ends with steps without a row."""
    both = (first, other)
    steps = max(mask.shape[0] for one in both for mask in one.masks.values())

    def longer(table: Array) -> Array:
        return jnp.pad(table, ((0, steps - table.shape[0]), (0, 0)))

    positions: dict[str, Array] = {}
    masks: dict[str, Array] = {}
    for one in both:
        positions |= {name: longer(table) for name, table in one.positions.items()}
        own = jnp.arange(steps, dtype=jnp.int32)[:, None] < one.num_steps
        masks |= {name: longer(mask) & own for name, mask in one.masks.items()}
    return Schedule(positions, masks, jnp.maximum(first.num_steps, other.num_steps))
