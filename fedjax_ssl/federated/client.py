"""Local training: one client, one round.

One local step builds the views that the terms ask for, runs one forward pass over all of them,
hands every term its slice, adds the weighted losses, takes one gradient and one optimizer update.
With several parameter groups the step has one such phase per group, in order; a loss moves only its
own group, because only that group is differentiated.

Parameters are carried in few arrays per group, see `fedjax_ssl.federated.packing`.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, Key

from fedjax_ssl.federated.forward import forward_views, gather_streams, labelling_key, views_of
from fedjax_ssl.federated.local_optimizer import descend
from fedjax_ssl.federated.local_step import LocalStep, StepTaken, TakeStep, plain_gradient
from fedjax_ssl.federated.local_training import LocalTraining
from fedjax_ssl.federated.messages import (
    Arrivals,
    ClientLog,
    Download,
    Sent,
    Sums,
    Upload,
    Work,
)
from fedjax_ssl.federated.method import (
    Client,
    ClientKind,
    ClientResult,
    Kept,
    Losses,
    Params,
    Snapshot,
    Step,
    Streams,
    Term,
)
from fedjax_ssl.federated.optimizers import Grouped, Local, Report
from fedjax_ssl.federated.packing import Packed, apart, cut, packing
from fedjax_ssl.federated.plan import Batch, ClientProgress, Plan, batch_of, step_bound
from fedjax_ssl.federated.setup import WEIGHTINGS
from fedjax_ssl.federated.uploads.transform import (
    REPORTED,
    check_covers,
    is_finite,
)
from fedjax_ssl.keys import named_key
from fedjax_ssl.models import Outputs

PyTree = Any
# The scopes in which parts of a round are traced: profiles and compiled programs name them.
LOCAL_STEP = "local_step"
AVERAGE = "average_clients"


def train_client(
    update: "ClientUpdate", client: Client, plan: Plan, loop: str = "own"
) -> ClientProgress:
    """Take a client's local steps.

    Args:
        update: local training.
        client: the client that trains.
        plan: its plan.
        loop: loop of its local steps. "own": to the client's own number of steps. "bound": to the
            static bound of its schedule, and steps beyond its own change nothing; on a GPU, a loop
            whose end is known when it is compiled asks the host nothing. "whole": the same for
            clients that take all these steps or none, so that no step has to be told from another
            one, and the update of weights is part of the product that gives its gradient.

    Returns:
        Its progress at the end.
    """
    begin = update.start(client)

    @jax.named_scope(LOCAL_STEP)
    def one_step(number: Int[Array, ""], progress: ClientProgress) -> ClientProgress:
        return update.step(client, number, batch_of(plan, number), progress)

    @jax.named_scope(LOCAL_STEP)
    def step_or_not(number: Int[Array, ""], progress: ClientProgress) -> ClientProgress:
        own = number < plan.num_steps
        return jax.tree.map(partial(jnp.where, own), one_step(number, progress), progress)

    if loop == "whole":
        end = jax.lax.fori_loop(0, step_bound(plan), one_step, begin)
        end = jax.tree.map(partial(jnp.where, plan.num_steps > 0), end, begin)
    elif loop == "bound":
        end = jax.lax.fori_loop(0, step_bound(plan), step_or_not, begin)
    else:
        # A loop with a traced bound: a client takes exactly its own number of steps. Nothing
        # differentiates through it.
        end = jax.lax.fori_loop(0, plan.num_steps, one_step, begin)
    return end


class ClientUpdate:
    """Local training of one kind of clients in one round, cut into pieces that a placement puts
    together.

    Args:
        training: parts that are the same for every round.
        kind: terms, batches, rate and weight of these clients.
        download: the message to all clients.
    """

    def __init__(self, training: LocalTraining, kind: ClientKind, download: Download):
        self.training = training
        self.kind = kind
        self.download = download
        self.packings = {group: packing(download.params[group]) for group in training.groups}
        self.common = {
            group: self.packings[group].pack(download.params[group]) for group in training.groups
        }
        self.shared = training.shared
        self.flat_state, unravel = ravel_pytree(download.model_state)
        self.unravel_state = partial(cut, unravel)
        phases = {
            group: tuple(term for term in kind.terms if term.group == group)
            for group in training.groups
        }
        self.phases = {group: terms for group, terms in phases.items() if terms}

    def to_params(self, grouped: Grouped) -> Params:
        """Unpacks the few arrays of every parameter group into its tree."""
        return {
            group: self.packings[group].unpack(grouped[group]) for group in self.training.groups
        }

    def key_of(self, client: Client) -> Key[Array, ""]:
        """Return the client's key of this round, by its id."""
        return jax.random.fold_in(named_key(self.download.key, "client"), client.id)

    def rate_of(self, client: Client) -> Float[Array, ""]:
        """Return the learning rate of the client's local steps."""
        rate = self.download.learning_rate
        return rate if self.kind.rate is None else rate * self.kind.rate(client)

    def kept_by(self, client: Client, term: Term) -> PyTree:
        """Return what the client kept for a term since its last round; () without."""
        return () if client.kept is None else client.kept.terms.get(term.name, ())

    def sent_to(self, client: Client) -> Grouped:
        """Return the shared parameters that a client is sent: the global ones, or those of its
        group.
        """
        given = {group: self.common[group] for group in self.shared}
        return self.training.federated_optimizer.start(
            self.download.optimizer, client.sent_by_optimizer, given
        )

    def anchor_of(self, client: Client) -> Grouped:
        """Return the parameters that a client starts from: what it has of those sent, and its own
        private ones.
        """
        given = self.sent_to(client)
        if self.training.receive is not None:
            had = self.training.receive(
                client, {group: self.packings[group].unpack(given[group]) for group in given}
            )
            given = {group: self.packings[group].pack(had[group]) for group in given}
        own = self.common if client.kept is None else {**self.common, **client.kept.params}
        return {
            group: given[group] if group in given else own[group] for group in self.training.groups
        }

    def statistics_of(self, client: Client) -> Array:
        """Return the batch statistics that a client starts from, in one vector."""
        if client.kept is None or not self.training.own_statistics:
            return self.flat_state
        return client.kept.model_state

    def network_of(self, client: Client, anchor: Grouped) -> Snapshot:
        """Return the network that a client starts from, of the parameters that it starts from."""
        groups = self.to_params(anchor)
        return Snapshot(
            self.training.combine(groups), self.unravel_state(self.statistics_of(client)), groups
        )

    def plan(self, client: Client) -> Plan:
        """Draws the client's batches of this round, and a key for each of its steps."""
        key = self.key_of(client)
        schedule = self.kind.sampler.schedule(named_key(key, "batches"), client, self.download.now)
        masks = list(schedule.masks.values())
        numbers = jnp.arange(masks[0].shape[0], dtype=jnp.int32)
        # Together and not in every step, where they would be operations of their own.
        keys = jax.vmap(partial(jax.random.fold_in, named_key(key, "step")))(numbers)
        own = (numbers < schedule.num_steps)[:, None]
        examples = sum(
            (jnp.sum(mask & own, dtype=jnp.int32) for mask in masks), start=jnp.zeros((), jnp.int32)
        )
        return Plan(Batch(schedule.positions, schedule.masks, keys), schedule.num_steps, examples)

    def start(self, client: Client) -> ClientProgress:
        """Return the client before its first step: parameters, optimizer states and local
        states of the terms.
        """
        anchor = self.anchor_of(client)
        network = self.network_of(client, anchor)
        optimizer = {
            group: self.training.optimizer.init({group: anchor[group]})
            for group in self.training.groups
        }
        optimizer = {**optimizer, **self.download.local_optimizer}
        if client.kept is not None:
            optimizer = {**optimizer, **client.kept.optimizer}
        return ClientProgress(
            params=anchor,
            model_state=self.statistics_of(client),
            optimizer=optimizer,
            local={
                term.name: term.client.start(
                    self.download.terms[term.name],
                    network.params,
                    network.model_state,
                    self.kept_by(client, term),
                )
                for term in self.kind.terms
            },
            loss=jnp.zeros(()),
        )

    def step(
        self, client: Client, number: Int[Array, ""], batch: Batch, progress: ClientProgress
    ) -> ClientProgress:
        """Take one local step: a phase for each parameter group that a term moves, in order."""
        own_key = jax.random.fold_in(labelling_key(self.download.key), client.id)
        streams = gather_streams(
            batch.positions, batch.masks, client, self.download.inputs, own_key
        )
        for group, terms in self.phases.items():
            after = self.one_phase(
                client, progress, number, group, terms, streams, named_key(batch.key, group)
            )
            views = views_of(terms)
            if views and (len(self.phases) > 1):
                # A group without a row in this step takes no step at all: no weight decay, no
                # momentum.
                rows = jnp.any(jnp.concatenate([view.real(streams) for view in views]))
                after = jax.tree.map(
                    lambda new, old, keep=rows: jnp.where(keep, new, old), after, progress
                )
            progress = after
        return progress

    def one_phase(
        self,
        client: Client,
        progress: ClientProgress,
        number: Int[Array, ""],
        group: str,
        terms: tuple[Term, ...],
        streams: Streams,
        phase_key: Key[Array, ""],
    ) -> ClientProgress:
        """Move one parameter group: forward pass, losses of its terms, gradient, correction and
        optimizer.
        """
        start = self.anchor_of(client)
        nothing: dict[str, Any] = dict.fromkeys(
            ("sent", "shared", "local", "params", "groups", "model_state"), ()
        )
        seen = Step(
            outputs={},
            inputs={},
            streams=streams,
            client=client,
            start_network=self.network_of(client, start),
            key=phase_key,
            now=self.download.now,
            number=number,
            **nothing,
        )
        # The plain step, in the wrapper of the clients' kind, in those of the terms.
        step: TakeStep = partial(self.take_step, progress, group)
        if self.kind.wrap_step is not None:
            step = self.kind.wrap_step(step)
        for term in terms:
            if term.client.wrap_step is not None:
                step = term.client.wrap_step(step, term.name)
        taken = step(
            LocalStep(
                inputs=seen,
                terms=terms,
                weights=progress.params[group],
                optimizer=progress.optimizer[group],
                packing=self.packings[group],
                unravel=self.unravel_state,
                gradient=plain_gradient,
                correct=partial(self.corrected, client, group, start[group]),
                forward=forward_views,
                run=partial(self.evaluate, progress, group),
            )
        )
        return progress._replace(
            params={**progress.params, group: taken.weights},
            model_state=taken.model_state,
            optimizer={**progress.optimizer, group: taken.optimizer},
            local=taken.local,
            loss=progress.loss + taken.loss,
        )

    def corrected(
        self, client: Client, group: str, anchor: Packed, gradient: Packed, weights: Packed
    ) -> Packed:
        """Correct a gradient as the federated optimizer does, as `LocalStep.correct`."""
        if group not in self.shared:
            return gradient
        changed = self.training.federated_optimizer.correct(
            {group: gradient}, {group: weights}, {group: anchor}, client.sent_by_optimizer
        )
        return changed[group]

    def take_step(self, progress: ClientProgress, group: str, at: LocalStep) -> StepTaken:
        """Take the plain step: gradient, correction of the federated optimizer, local optimizer."""
        loss, slope, losses = at.gradient(at)
        gradient: Grouped = {group: at.correct(slope, at.weights)}
        weights = {group: at.weights}
        rate = self.rate_of(at.inputs.client)
        new, optimizer = descend(self.training.optimizer, gradient, at.optimizer, weights, rate)
        local = {**progress.local, **losses.local}
        return StepTaken(new[group], optimizer, losses.model_state, local, loss, losses.outputs)

    def evaluate(
        self,
        progress: ClientProgress,
        group: str,
        at: LocalStep,
        weights: Packed,
        terms: tuple[Term, ...],
        earlier: dict[str, Outputs] | None,
    ) -> Losses:
        """Run a forward pass and compute the losses of these terms on it, as
        `LocalStep.evaluate`.
        """
        groups = self.to_params({**progress.params, group: weights})
        params = self.training.combine(groups)
        model_state = self.unravel_state(progress.model_state)
        seen = at.inputs
        inputs, outputs, new_state = at.forward(
            self.training.model, params, model_state, views_of(terms), seen.streams, seen.key
        )
        seen = seen._replace(
            outputs=outputs,
            inputs=inputs,
            params=params,
            groups=groups,
            model_state=model_state,
            earlier=earlier,
        )
        values = {}
        local = {}
        for term in terms:
            result = term.loss(
                seen._replace(
                    sent=seen.client.sent.get(term.name, ()),
                    shared=self.download.now.shared.get(term.name, ()),
                    local=progress.local.get(term.name, ()),
                    key=named_key(seen.key, term.name),
                )
            )
            value, after = (
                result if isinstance(result, tuple) else (result, progress.local.get(term.name))
            )
            values[term.name] = term.weight * value
            if term.name in progress.local:
                local[term.name] = after
        return Losses(values, local, ravel_pytree(new_state)[0], outputs)

    @jax.named_scope(AVERAGE)
    def finish(self, client: Client, plan: Plan, end: ClientProgress) -> tuple[Sums, Arrivals]:
        """Make a trained client's upload, what it keeps and what the log sees of it: (what is added
        up over the cohort, what is stacked).

        An upload with a value that is not finite is dropped: it weighs nothing, nothing of it is
        kept, and it is counted in `Work.dropped`. A client whose loss, parameters or batch
        statistics are not finite is so dropped before terms collect and transforms look: both see
        it as it began.
        """
        begin = self.start(client)
        loss = end.loss
        # Who diverged has trained nothing: it goes back to where it began.
        finite = apart(is_finite((end.loss, end.params, end.model_state)))
        trained = finite & (plan.num_steps > 0)
        end = jax.tree.map(lambda new, old: jnp.where(trained, new, old), end, begin)
        result = self.result_of(client, plan, begin, end)
        remembered = {
            term.name: term.client.remember(result)
            for term in self.kind.terms
            if term.client.remember
        }
        upload = self.upload_of(client, end, result)
        # What is lost, or says or leaves something that is not finite, is lost as a whole.
        arrived = upload.arrived
        sound = is_finite((upload.weight, remembered, upload.optimizer)) & arrived
        if self.training.uploads.at_client is not None:
            # Nothing of it is left, whatever the numbers are.
            upload = jax.tree.map(lambda x: jnp.where(sound, x, jnp.zeros_like(x)), upload)
        finite, trained = apart((finite & (sound | ~trained), trained & sound))
        work = Work(
            loss=jnp.where(finite, loss, 0.0),
            steps=jnp.where(finite, plan.num_steps, 0),
            examples=jnp.where(finite, plan.examples, 0),
            dropped=(~finite).astype(jnp.int32),
        )
        lost = jnp.zeros((), bool)
        if (participation := self.training.participation) is not None:
            lost = participation.lost_after_training(self.download.now, client.id[None])[0]
            lost = lost & trained
            arrived = arrived & ~lost
            upload = jax.tree.map(lambda x: jnp.where(lost, jnp.zeros_like(x), x), upload)
        counted = trained & ~lost
        report, summed = self.weighed(client, plan, end, upload, counted, work)
        kept = Kept(
            params={group: end.params[group] for group in self.training.private},
            optimizer=end.optimizer if self.training.keep_optimizer else {},
            terms=remembered,
            federated=report.kept,
            model_state=end.model_state if self.training.own_statistics else (),
        )
        log = ClientLog(
            measured={term.name: term.log.measure(result) for term in self.kind.terms},
            model=Snapshot(result.params, result.model_state)
            if self.training.keep_models
            else None,
        )
        sent: Sent | tuple[()] = ()
        if self.training.summation is not None:
            sent = Sent(summed.update, summed.statistics, summed.weight)
        return summed, Arrivals(upload.terms, counted, arrived, lost, kept, log, sent)

    def result_of(
        self, client: Client, plan: Plan, begin: ClientProgress, end: ClientProgress
    ) -> ClientResult:
        """Return a client after local training as its terms see it."""
        groups = self.to_params(end.params)
        start = self.to_params(begin.params)
        sent = start
        if self.training.receive is not None:  # something was lost on the way down
            sent = self.to_params({**begin.params, **self.sent_to(client)})
        return ClientResult(
            client=client,
            params=self.training.combine(groups),
            groups=groups,
            sent_params=sent,
            start_params=start,
            model_state=self.unravel_state(end.model_state),
            local=end.local,
            num_steps=plan.num_steps,
            inputs=self.download.inputs,
            validation=self.download.validation,
            key=self.key_of(client),
            now=self.download.now,
            test=self.download.test,
        )

    def upload_of(self, client: Client, end: ClientProgress, result: ClientResult) -> Upload:
        """Return what a trained client sends, as it arrives: changed by the upload transforms."""
        terms = {term.name: term.client.collect(result) for term in self.kind.terms}
        averages = {term.name: term.client.average(result) for term in self.kind.terms}
        weigh = self.kind.weigh
        wanted = (
            WEIGHTINGS[self.training.weighting](client) if weigh is None else weigh(client, terms)
        )
        statistics = end.model_state - self.flat_state
        upload = Upload(
            update=jax.tree.map(
                jnp.subtract,
                {group: end.params[group] for group in self.shared},
                self.sent_to(client),
            ),
            statistics=jnp.zeros_like(statistics) if self.training.own_statistics else statistics,
            optimizer={
                group: end.optimizer[group]
                for group in self.shared
                if self.training.average_optimizer
            },
            terms=terms,
            averages=averages,
            weight=wanted,
            arrived=jnp.ones((), bool),
            tallies={name: jnp.zeros(()) for name in self.training.uploads.tallies},
        )
        change = self.training.uploads.at_client
        if change is not None:
            key = named_key(result.key, "uploads")
            upload = change(key, upload, result, self.download.uploads)
        return upload

    def weights_of(self, upload: Upload, counted: Bool[Array, ""]) -> dict[str, Float[Array, ""]]:
        """Return the weights of an upload by group, and "": that of the client as a whole."""
        weight = jnp.where(counted, upload.weight, 0.0)
        weights = {
            group: weight if group in self.phases else jnp.zeros_like(weight)
            for group in self.shared
        }
        return {**weights, "": weight}

    def weighed(
        self,
        client: Client,
        plan: Plan,
        end: ClientProgress,
        upload: Upload,
        trained: Bool[Array, ""],
        work: Work,
    ) -> tuple[Report, Sums]:
        """Return what the federated optimizer makes of an upload, and the upload times its weight,
        as it is added up; 0 where the client does not count.
        """
        weights = self.weights_of(upload, trained)
        weight = weights.pop("")
        states = jax.tree.map(lambda x: jnp.where(trained, x, jnp.zeros_like(x)), upload.optimizer)
        anchor = self.sent_to(client)
        arrived = {group: end.params[group] for group in self.shared}
        if self.training.uploads.at_client is not None:
            arrived = jax.tree.map(jnp.add, anchor, upload.update)
        report = self.training.federated_optimizer.report(
            Local(
                anchor=anchor,
                params=arrived,
                change=upload.update,
                weights=weights,
                num_steps=plan.num_steps,
                learning_rate=self.rate_of(client),
                sent_by_optimizer=client.sent_by_optimizer,
                kept=() if client.kept is None else client.kept.federated,
            )
        )
        # Made after the transforms, which see it only in sum.
        if jax.tree.leaves(report.summed.more):
            check_covers([self.training.uploads], REPORTED)
        summed = Sums(
            update=report.summed,
            statistics=weight.astype(self.flat_state.dtype) * upload.statistics,
            optimizer={
                group: (weights[group], _times(weights[group], state))
                for group, state in states.items()
            },
            averages=_times(weight, upload.averages),
            weight=weight,
            work=work,
            tallies={
                name: jnp.where(trained, value, 0.0) for name, value in upload.tallies.items()
            },
        )
        return report, summed


def _times(weight: Float[Array, ""], tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: weight * x.astype(weight.dtype), tree)
