"""Compositions: methods and single terms, added up in one local step, as a config names them.

`config.method.parts` names them, and each has a weight and its settings in a section of its name,
as `config.method.fixmatch.threshold`; with `after` it joins the others in a later round, in another
stage. A term is the loss of a method without the batches of one:
it looks at the examples with a label (stream "labelled") and at those without (stream
"unlabelled"), as parts that draw such batches leave them, so that all of them share views and one
forward pass.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax.traverse_util import unflatten_dict
from jaxtyping import Array

from fedjax_ssl import federated
from fedjax_ssl.checks import checked, is_zero
from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated import Needs, ParameterGroups, Recipe, Sampler, Setup, Stage, Step, Term
from fedjax_ssl.federated.messages import Upload
from fedjax_ssl.federated.method import Broadcast, ClientResult, PyTree, RoundContext
from fedjax_ssl.federated.recipe import in_words
from fedjax_ssl.federated.sampler import known_epochs, labelled_epochs, paired_batches, passes
from fedjax_ssl.federated.uploads.transform import UploadTransform
from fedjax_ssl.methods import METHODS, OF_PARTS, TERMS, by_itself, registry_of_part, short
from fedjax_ssl.methods.mixed import PropagatedLabels, propagated_term
from fedjax_ssl.methods.parts.channel_terms import KNOWN, channel_term, own_channel
from fedjax_ssl.methods.parts.consistency import LABELLED, UNLABELLED
from fedjax_ssl.methods.parts.settings import Count, Positive, Share, Weight
from fedjax_ssl.methods.parts.terms import (
    PseudoLabels,
    examples_mask,
    network_features,
    pseudo_label_term,
    supervised_term,
)
from fedjax_ssl.methods.protofssl import ProtoFSSL, protofssl, pseudo_labels

# Terms by name, and of which labels of clients they are the loss: each kind counts once.
_LOSS_OF = {
    "supervised": {"labels"},
    "channel": set(KNOWN),
    "sets": {"sets"},
    "coarse": {"coarse"},
}


def supervised(setup: Setup) -> Recipe:
    """Cross-entropy of class labels."""
    return _alone(setup, supervised_term(setup), ("labels",), "only")


def channels(setup: Setup, *, use_test_prior: bool = True) -> Recipe:
    """Cross-entropy of class labels, coarse labels and counted sets.

    Each is explained through its client's channel.

    Args:
        setup: the run.
        use_test_prior: False: learn a posterior under uniform class shares, see `fedul`.
    """
    return _known(setup, KNOWN, use_test_prior)


def sets(setup: Setup, *, use_test_prior: bool = True) -> Recipe:
    """Cross-entropy of the sets that examples are in (FedUL).

    It goes through the sets' class shares.

    Args:
        setup: the run.
        use_test_prior: as in `channels`.
    """
    return _known(setup, ("sets",), use_test_prior)


def coarse(setup: Setup) -> Recipe:
    """Cross-entropy of coarse labels (FedMT's projection loss).

    It goes through their correspondence to classes.
    """
    return _known(setup, ("coarse",))


def graph(setup: Setup, settings: PropagatedLabels) -> Recipe:
    """Labels propagated over one graph of the cohort (XCLP).

    They never contradict a weak label.
    """
    term = propagated_term(setup, settings, UNLABELLED)
    recipe = _alone(setup, term, KNOWN, "any")
    return recipe._replace(sends=("codes of their examples",))


@checked
@dataclass(frozen=True)
class Prototypes:
    """Settings of pseudo-labels by prototypes, those of ProtoFSSL and a threshold, which is ours.

    Attributes:
        threshold: a pseudo-label counts where its largest probability is at least this; 0: all do,
            as in ProtoFSSL.
        distance: of embeddings and prototypes: "sq_euclidean", "mean_sq" (the same divided by the
            number of features, which makes pseudo-labels of a small network vague) or "euclidean".
        temperature: T, pseudo-labels are sharpened with exponent 1/T.
        num_helpers: prototype sets that make them; all there are, if fewer.
        proto_noise_std: std of Gaussian noise on what is shared.
    """

    threshold: Share = 0.95
    distance: Literal["sq_euclidean", "mean_sq", "euclidean"] = "sq_euclidean"
    temperature: Positive = 0.5
    num_helpers: Count = 5
    proto_noise_std: Weight = 0.0


def prototypes(setup: Setup, settings: Prototypes) -> Recipe:
    """Pseudo-labels by other clients' class prototypes (ProtoFSSL).

    The network's class scores learn them.

    Args:
        setup: the run.
        settings: the term's own.
    """
    # Prototypes travel as in ProtoFSSL. Labels are made with the network that was received: in the
    # steps after it, embeddings move away from prototypes of the round before.
    shared = {name: value for name, value in vars(settings).items() if name != "threshold"}
    how = ProtoFSSL(**shared, proto_source="global")
    recipe = protofssl(setup, how)
    (term,) = recipe.stages[0].terms

    def prepare(state: PyTree, context: RoundContext) -> tuple[Broadcast, PyTree]:
        sent, state = term.server.prepare(state, context)
        helpers = sent.shared
        probabilities = jax.vmap(lambda own: pseudo_labels(own, helpers.sets, how))(
            network_features(setup, context)
        )
        largest = jnp.max(probabilities, axis=2)
        unlabelled = examples_mask(context.clients) & (context.clients.observed < 0)
        sure = unlabelled & helpers.active & (largest >= settings.threshold)
        labels = jnp.where(sure, jnp.argmax(probabilities, axis=2).astype(jnp.int32), -1)
        targets = PseudoLabels(labels, sure.astype(largest.dtype), largest)
        return Broadcast(targets, helpers), state

    nothing: Any = None
    taught = pseudo_label_term(setup, nothing, stream=UNLABELLED)
    server = taught.server._replace(
        prepare=prepare, server_update=term.server.server_update, at_clients=False
    )
    log = taught.log._replace(traffic=term.log.traffic)
    whole = taught._replace(
        name=term.name, server=server, client=term.client, log=log, sends=term.sends
    )
    alone = _alone(setup, whole, ("labels",), "any")
    return alone._replace(init=recipe.init, uploads=recipe.uploads)


def compose(
    setup: Setup,
    *,
    parts: tuple[str, ...] = (),
    **sections: Any,
) -> Recipe:
    """Methods and single terms added up in one local step, each with a weight and settings of its
    own.

    The first part predicts. Parts that draw examples with a label, or these and unlabelled ones,
    look at the same batches. Class labels count once: where two parts have a loss on them, that of
    a term named for it stays, else the first one.

    Args:
        setup: the run.
        parts: methods and terms, `fedjax-ssl list terms`, or "module:function" of a function that
            returns a `Recipe` or a `Term`.
        **sections: settings by the name of a part, or each as "PART.SETTING". `weight` is the
            factor of its losses; `after` the rounds before it joins the others, in a stage of its
            own; `rise` those in which its weight then rises to the whole.

    Raises:
        ValueError: there are no parts, two of one name, one with the weight 0 or whose labels count
            already, settings of one that is not there, one that cannot join later, or recipes that
            do not fit each other.
    """
    names = [short(part) for part in parts]
    sections = unflatten_dict(sections, sep=".")
    if not names:
        raise ValueError(
            "parts is empty; name methods and terms, as `fedjax-ssl list terms` does, for example "
            "--method.parts=supervised,fixmatch"
        )
    if len({*names}) < len(names):
        raise ValueError(f"parts are called {', '.join(names)}; two of one name share settings")
    if unknown := sorted(sections.keys() - {*names}):
        raise ValueError(
            f"there are settings of {', '.join(unknown)}, which is not among the parts: "
            f"{', '.join(names)}"
        )
    if len(names) > 1:
        for part in parts:
            if reason := by_itself(part):
                raise ValueError(
                    f"the part {part!r} cannot be composed with others: {reason}; leave it out of "
                    f"parts, or run it by itself with --method.name={part}"
                )
    recipes = [_part(part, setup, sections.get(short(part), {})) for part in parts]
    if grown := [one.setup.model for one in recipes if one.setup.model is not setup.model]:
        # a part adds to the network, which is then that of all
        setup = setup._replace(model=grown[0])
        recipes = [_part(part, setup, sections.get(short(part), {})) for part in parts]
    begins = [sections.get(name, {}).get("after", 0) for name in names]
    if begins[0]:
        raise ValueError(
            f"{names[0]}.after is {begins[0]}, but the first part predicts and is there from round "
            "0 on; put another one first"
        )
    recipes, notes = _counted_once(recipes, begins)
    composed = _joined(setup, recipes, begins)
    kinds = composed.needs.kinds or Needs().kinds

    def check(data: FederatedData) -> list[str]:
        there = data.kinds()
        for recipe in recipes:
            wanted = {*recipe.needs.kinds}
            fits = wanted <= {*there} if recipe.needs.every_one else wanted & {*there}
            if wanted and not fits:
                raise ValueError(
                    f"the part {recipe.name!r} learns from {in_words(recipe.needs)}, and this "
                    f"federation has {in_words(Needs(there, True))}; leave it out of method.parts"
                )
        found = [] if composed.check is None else composed.check(data)
        return list(dict.fromkeys([*notes, *found]))

    return composed._replace(check=check, needs=Needs(kinds))


def _alone(setup: Setup, term: Term, kinds: tuple[str, ...], quota: str) -> Recipe:
    """Return a recipe of one term, which looks at batches of others."""
    stage = Stage((term,), None, quota)
    if kinds != ("labels",):
        stage = stage._replace(count_labels=lambda clients: clients.num_known)
    return Recipe(setup, (stage,), needs=Needs(kinds))


def _known(setup: Setup, kinds: tuple[str, ...], use_test_prior: bool = True) -> Recipe:
    """Return the loss of what clients know of these kinds."""
    term = channel_term(setup, channel=own_channel(use_test_prior), kinds=kinds)
    named = term if kinds == KNOWN else term._replace(name=kinds[0])
    return _alone(setup, named, kinds, "only")


def _part(part: str, setup: Setup, settings: Mapping[str, Any]) -> Recipe:
    """Build a part, its losses times its weight."""
    registry = registry_of_part(part)
    name = short(part)
    own = registry.options(part)
    common = {option: one.default for option, one in OF_PARTS.items()}
    for option in common.keys() & settings.keys() - own.keys():
        allowed = OF_PARTS[option].allowed
        assert allowed is not None
        allowed.check(f"{name}.{option}", settings[option])
        common[option] = settings[option]
    weight = common["weight"]
    if is_zero(weight):
        raise ValueError(f"the weight of {name!r} is 0; leave it out of parts")
    given = {
        option: value
        for option, value in settings.items()
        if option in own or option not in OF_PARTS
    }
    try:
        made = registry.build(part, setup, **given)
    except ValueError as error:
        raise ValueError(f"the part {name!r}: {error}") from error
    if isinstance(made, Term):
        made = Recipe(setup, (Stage((made,), None),), needs=Needs(()))
    if not isinstance(made, Recipe):
        raise ValueError(
            f"{part} returned {type(made).__name__}; a part returns a fedjax_ssl.Recipe or a Term"
        )
    made = _joining_later(made._replace(name=name), common["after"])
    whole = isinstance(weight, float) and weight == 1.0
    if whole and not common["rise"]:
        return made

    def changed(term: Term) -> Term:
        if not whole:
            term = term._replace(weight=weight * term.weight)
        return _rising(term, common["after"], common["rise"]) if common["rise"] else term

    def weighted(stage: Any) -> Any:
        return stage._replace(terms=tuple(map(changed, stage.terms)))

    stages = (
        stage._replace(server=stage.server and weighted(stage.server))
        for stage in map(weighted, made.stages)
    )
    return made._replace(stages=tuple(stages))


def _rising(term: Term, after: int, rounds: int) -> Term:
    """Return a term whose loss counts more from round to round, and whole from the last of these
    rounds on.
    """

    def loss(step: Step) -> Any:
        found = term.loss(step)
        since = step.now.round
        assert since is not None, "in training it is known"
        share = jnp.clip((since + 1 - after) / rounds, 0.0, 1.0)
        if isinstance(found, tuple):
            return share.astype(found[0].dtype) * found[0], *found[1:]
        return share.astype(found.dtype) * found

    return term._replace(loss=loss)


def _joining_later(recipe: Recipe, after: int) -> Recipe:
    """Return a part that is there in some of the rounds alone: before, it changes no upload.

    Raises:
        ValueError: it cannot be so, and why.
    """
    if not after:
        return recipe
    reasons = (
        (len(recipe.stages) > 1, "it has stages of its own; set its warmup_rounds"),
        (recipe.pretraining, "it trains before round 0"),
        (
            any(transform.at_server for transform in recipe.uploads),
            "it changes sums of what clients send",
        ),
        (recipe.groups != ParameterGroups(), "it has parameter groups of its own"),
    )
    for wrong, reason in reasons:
        if wrong:
            raise ValueError(
                f"{recipe.name}.after is {after}, but this part cannot join later: {reason}"
            )
    own = {term.name for term in recipe.stages[0].terms}

    def where_sent(transform: UploadTransform) -> UploadTransform:
        change = transform.at_client
        if change is None:
            return transform

        def at_client(key: Array, upload: Upload, trained: ClientResult, state: PyTree) -> Upload:
            return upload if own.isdisjoint(upload.terms) else change(key, upload, trained, state)

        return transform._replace(at_client=at_client)

    return recipe._replace(uploads=tuple(map(where_sent, recipe.uploads)))


def _joined(setup: Setup, recipes: Sequence[Recipe], begins: Sequence[int]) -> Recipe:
    """Compose parts, some of which begin later than others: a stage for each set of parts that is
    there.

    Raises:
        ValueError: the recipes do not fit each other.
    """
    whole = federated.compose(*_with_batches(setup, recipes))
    places = sorted({*begins})
    if len(places) > 1 and len(whole.stages) > 1:
        raise ValueError(
            f"the parts have stages of {', '.join(str(one.rounds) for one in whole.stages[:-1])} "
            "rounds, so that none can join after others; leave out `after`, or warmup_rounds"
        )
    stages = []
    for begin, end in pairwise(places):
        there = [one for one, first in zip(recipes, begins, strict=True) if first <= begin]
        (stage,) = federated.compose(*_with_batches(setup, there)).stages
        stages.append(stage._replace(rounds=end - begin))
    return whole._replace(stages=(*stages, *whole.stages))


def _counted_once(
    recipes: Sequence[Recipe], begins: Sequence[int]
) -> tuple[list[Recipe], list[str]]:
    """Leave out losses of class labels that another part has too: (recipes, what to say of it).

    Args:
        recipes: the parts.
        begins: round in which each begins; who is there first keeps its loss.

    Raises:
        ValueError: two parts have a loss of the same labels, and it is all that one of them has.
    """
    losses = [_losses_of(recipe) for recipe in recipes]
    holders = [place for place, own in enumerate(losses) if own & {"supervised", "channel"}]

    def rank(place: int) -> tuple[int, bool, bool]:
        return begins[place], "supervised" in losses[place], recipes[place].name not in TERMS

    changed = list(recipes)
    notes = []
    keeper = recipes[min(holders, key=rank)].name if holders else ""
    for place in holders:
        recipe = recipes[place]
        terms = recipe.stages[0].terms
        others = tuple(term for term in terms if term.name != "supervised")
        if recipe.name == keeper or len(recipe.stages) > 1 or others in ((), terms):
            continue
        changed[place] = recipe._replace(stages=(recipe.stages[0]._replace(terms=others),))
        plain = supervised_term(recipe.setup).loss.__code__
        if any(one not in others and not _is(one, plain) for one in terms):
            notes.append(
                f"class labels count once, in the part {keeper!r}: the loss on them of "
                f"{recipe.name!r}, which has another weight or form, is left out"
            )
    for recipe in recipes:
        beside = (term for term in recipe.stages[-1].terms if term.name not in (*_LOSS_OF, *TERMS))
        streams = {view.stream for term in beside for view in term.views}
        learns = recipe.name in METHODS and "labels" in recipe.needs.kinds
        if keeper and recipe.name != keeper and learns and streams - {UNLABELLED}:
            notes.append(
                f"class labels count in the part {keeper!r}, and once more in {recipe.name!r}, "
                "whose loss on them is one with that on other examples"
            )
    counted: dict[str, str] = {}
    for recipe in changed:
        for kind in sorted({kind for name in _losses_of(recipe) for kind in _LOSS_OF[name]}):
            if kind in counted:
                raise ValueError(
                    f"the parts {counted[kind]!r} and {recipe.name!r} both have a loss on "
                    f"{in_words(Needs((kind,)))}; leave one of them out"
                )
            counted[kind] = recipe.name
    return [_without_needs(one) if counted else one for one in changed], notes


def _is(term: Term, code: Any) -> bool:
    """Return whether a term has this loss, with the weight 1."""
    weighs_one = isinstance(term.weight, float) and term.weight == 1.0
    return weighs_one and getattr(term.loss, "__code__", None) is code


def _losses_of(recipe: Recipe) -> set[str]:
    """Return the names of a part's terms that are losses on labels."""
    return {term.name for stage in recipe.stages for term in stage.terms} & _LOSS_OF.keys()


def _without_needs(recipe: Recipe) -> Recipe:
    """Take the needs from a part that looks at unlabelled examples alone, beside others that look
    at labels.
    """
    (stage, *more) = recipe.stages
    views = {view.stream for term in stage.terms for view in term.views}
    paired = stage.sampler is not None and UNLABELLED in stage.sampler.streams
    if paired and not more and stage.server is None and views == {UNLABELLED}:
        return recipe._replace(needs=Needs(()))
    return recipe


def _with_batches(setup: Setup, recipes: Sequence[Recipe]) -> list[Recipe]:
    """Give the same batches to all parts that look at examples with a label, or at these and
    unlabelled ones.

    Raises:
        ValueError: a part without batches looks at others.
    """
    stages = [stage for recipe in recipes for stage in recipe.stages]
    weak = any(_losses_of(recipe) - {"supervised"} for recipe in recipes)
    looked_at = {
        view.stream: recipe.name
        for recipe in recipes
        for stage in recipe.stages
        if stage.sampler is None
        for term in stage.terms
        for view in term.views
    }
    if other := looked_at.keys() - {LABELLED, UNLABELLED}:
        raise ValueError(
            f"the part {looked_at[min(other)]!r} looks at the stream {min(other)!r}, and no other "
            "part draws it; return a Recipe with a sampler"
        )
    drawn = [stage.sampler for stage in stages if stage.sampler and stage.sampler.with_weak]
    bounds = (setup.max_labelled, setup.max_unlabelled)
    sizes = (setup.batch_size, setup.batch_size)
    if drawn:
        shared = drawn[0]
    elif UNLABELLED in looked_at:
        shared = paired_batches(*sizes, passes(*sizes, setup.local_epochs, *bounds), *bounds)
    elif weak:
        shared = known_epochs(setup.batch_size, setup.local_epochs, setup.max_known)
    else:
        shared = labelled_epochs(setup.batch_size, setup.local_epochs, setup.max_labelled)
    common = shared.with_weak(setup.max_known) if weak and shared.with_weak else shared

    def batches(sampler: Sampler | None) -> Sampler | None:
        if sampler is None or sampler is shared or sampler.streams == (LABELLED,):
            return common
        return sampler

    def of_stage(stage: Stage) -> Stage:
        return stage._replace(sampler=batches(stage.sampler)) if stage.terms else stage

    return [recipe._replace(stages=tuple(map(of_stage, recipe.stages))) for recipe in recipes]
