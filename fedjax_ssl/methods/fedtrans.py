"""Transfer learning from the clients' coarse labels to the server's classes: a baseline of FedMT.

Clients and server never train the same head. First the clients train a network for their coarse
labels, then the server trains a new head for the classes. No correspondence between the label
spaces is used.

References:
    Transfer learning as an answer to label spaces that differ: Federated learning with mixed-type
    labels, arXiv 2210.02042v4. The details are our own definition.
"""

from dataclasses import dataclass
from typing import Literal

import jax
from jaxtyping import Array

from fedjax_ssl.checks import checked
from fedjax_ssl.federated import Needs, Recipe, Setup, Stage, Term, Training
from fedjax_ssl.federated.contract import Step, merged
from fedjax_ssl.methods.parts import second_head
from fedjax_ssl.methods.parts.alternating_training import ServerTurn, server_training
from fedjax_ssl.methods.parts.channel_terms import check_one_space
from fedjax_ssl.methods.parts.recommended import AT_SERVER
from fedjax_ssl.methods.parts.second_head import (
    BODY,
    HEAD,
    check_heads,
    coarse_epochs,
    coarse_term,
    count_coarse,
)
from fedjax_ssl.methods.parts.setting_types import Count
from fedjax_ssl.methods.parts.static_batch_norm import with_static_batch_norm

RECOMMENDED = {
    "fedtrans": {
        "coarse": {
            **AT_SERVER,
            "model.aux_head": True,
            # Half of the rounds in each stage, because the learning rate falls within each stage.
            "method.coarse_rounds": 15,
            "optimizer.schedule_rounds": 15,
        }
    }
}


@checked
@dataclass(frozen=True)
class FedTrans(ServerTurn):
    """Settings of transfer learning.

    Attributes:
        coarse_rounds: rounds in which the clients train the network and the second head on their
            coarse labels; after them only the server trains.
        finetune: part that the server trains: "all", or only the main "head".
    """

    coarse_rounds: Count = 50
    finetune: Literal["all", "head"] = "all"


def fedtrans(setup: Setup, settings: FedTrans) -> Recipe:
    """Transfer learning: coarse labels at clients, then a new head for the server's classes.

    The network needs a second head (model option `aux_head=True`), whose first outputs are for the
    coarse labels. Clients without coarse labels do not train, and neither do clients with sets.
    During the first `coarse_rounds` rounds, the head that predicts is untrained.

    Args:
        setup: the run.
        settings: the method's own.

    Raises:
        ValueError: for a setting outside these, or a network without a second head; when a round is
            traced, for a federation without coarse labels, without examples at the server, or with
            more weak labels than outputs.
    """
    check_heads(setup, "fedtrans")
    server = server_training(setup, settings)
    (supervised,) = server.terms
    terms: tuple[Term, ...] = (supervised._replace(group=HEAD),)
    if settings.finetune == "all":
        terms = (*terms, _silent(supervised)._replace(name="supervised body", group=BODY))
    stages = (
        coarse_stage(setup, settings.coarse_rounds),
        Stage(None, server=server._replace(terms=terms)),
    )
    # A part without a loss in a stage is in a group of its own, which takes no step there, not even
    # of weight decay.
    recipe = Recipe(
        setup,
        stages,
        second_head.by_head(HEAD, BODY),
        Needs(("coarse", "server"), every_one=True),
        check=check_one_space,
    )
    if not settings.static_batch_norm:
        return recipe

    def joined(state):
        return merged(state.params)

    return with_static_batch_norm(recipe, joined)


def coarse_stage(setup: Setup, rounds: int) -> Stage:
    """Return the stage of federated averaging on coarse labels, by the clients that have some.

    Args:
        setup: the run.
        rounds: number of rounds.
    """
    sampler = coarse_epochs(setup.batch_size, setup.local_epochs, setup.max_known)
    term = coarse_term(setup, "fedtrans", BODY)
    return Stage(
        Training((term,), sampler), labelled_quota="only", rounds=rounds, count_labels=count_coarse
    )


def _silent(term: Term) -> Term:
    """Return the same gradient with a loss of 0, so that a loss that moves two groups counts once
    in the log.
    """

    def loss(step: Step) -> Array:
        value = term.loss(step)
        return value - jax.lax.stop_gradient(value)

    return term._replace(loss=loss)
