"""FedRep: one shared body, and heads that stay at the clients.

A round starts from the body that is sent and from the client's own head:

1. Head epochs: the client trains its head, the body is frozen.
2. Body epochs: it trains the body, the head is frozen.
3. The mean of the clients' changes of the body is a step of the federated optimizer.

As a baseline of FedMT (`labels="coarse"`), the clients' labels are of another space, with a J-way
head at each client, and the server, with a K-way head for the classes, is one more client: it
trains in the same way on its labelled examples, and its body is a member of the average. The
network of the average body and the server's head predicts.

References:
    Collins, Hassani, Mokhtari, Shakkottai, Exploiting shared representations for personalized
    federated learning, ICML 2021, arXiv 2102.07078: algorithm 1, with epochs of SGD for both parts.
    Named as an alternative in: Federated learning with mixed-type labels, arXiv 2210.02042v4; how
    it is used there is our own definition.
"""

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedjax_ssl.checks import checked
from fedjax_ssl.federated import (
    Needs,
    Recipe,
    Sampler,
    Setup,
    Stage,
    Step,
    Term,
    Training,
    epochs,
    in_turn,
    own_model,
)
from fedjax_ssl.federated.contract import (
    ForLog,
    PyTree,
    RoundResult,
    ServerState,
    Traffic,
    merged,
)
from fedjax_ssl.federated.packing import packing
from fedjax_ssl.federated.traffic import BYTES_PER_NUMBER, count
from fedjax_ssl.methods.parts import second_head
from fedjax_ssl.methods.parts.channel_terms import check_one_space
from fedjax_ssl.methods.parts.recommended import AT_SERVER
from fedjax_ssl.methods.parts.second_head import (
    BODY,
    HEAD,
    SECOND_HEAD,
    coarse_epochs,
    coarse_term,
    count_coarse,
)
from fedjax_ssl.methods.parts.setting_types import Count
from fedjax_ssl.methods.parts.terms import augmented_view
from fedjax_ssl.models import count_parameters
from fedjax_ssl.objectives import batch_cross_entropy

RECOMMENDED = {"fedrep": {"coarse": {**AT_SERVER, "model.aux_head": True, "method.head_epochs": 5}}}


@checked
def fedrep(
    setup: Setup,
    *,
    labels: Literal["coarse", "class"] = "coarse",
    head_epochs: Count = 10,
    body_epochs: Count = 1,
    shared_head: bool = False,
    server_batch_size: Count = 10,
) -> Recipe:
    """FedRep: a shared body, and heads that stay at the clients and at the server.

    With `labels="coarse"` the network needs a second head (model option `aux_head=True`), whose
    first outputs are for the coarse labels. Clients without coarse labels do not train, and neither
    do clients with sets. With `labels="class"` every client predicts with its own head; the global
    network then has the mean of the heads of all clients, which FedRep itself does not have.

    Args:
        setup: the run; its `local_epochs` are not used.
        labels: "coarse", or "class" for FedRep as in its paper.
        head_epochs: local epochs of the head, with the body frozen.
        body_epochs: local epochs of the body after that, with the head frozen.
        shared_head: with coarse labels, average the clients' heads too.
        server_batch_size: labelled examples per step at the server, with coarse labels.

    Raises:
        ValueError: for a setting outside these, or a network without a second head; when a round is
            traced, for a federation without coarse labels, without examples at the server, or with
            more weak labels than outputs.
    """
    if labels == "class":
        if shared_head:
            raise ValueError(
                "shared_head is True and labels is 'class': nothing would be private; that is "
                "'fedavg'"
            )
        return _with_class_labels(setup, head_epochs, body_epochs)
    second_head.check_heads(setup, "fedrep")
    terms = tuple(
        coarse_term(setup, "fedrep", group, stream)
        for group, stream in ((SECOND_HEAD, HEAD), (BODY, BODY))
    )
    sent = (BODY, SECOND_HEAD) if shared_head else (BODY,)
    body = terms[1]._replace(log=ForLog(traffic=partial(_without_server_head, sent)))
    sampler = in_turn(
        coarse_epochs(setup.batch_size, head_epochs, setup.max_known, HEAD),
        coarse_epochs(setup.batch_size, body_epochs, setup.max_known, BODY),
    )
    server_terms = tuple(class_term(setup, group, f"{group} at server") for group in (HEAD, BODY))
    at_server = _class_epochs(server_batch_size, head_epochs, body_epochs, setup.max_server)
    stage = Stage(
        Training((terms[0], body), sampler),
        Training(server_terms, at_server),
        when=("beside",),
        keep_server_optimizer=setup.keep_optimizer,
        labelled_quota="only",
        count_labels=count_coarse,
    )
    groups = second_head.by_head(SECOND_HEAD, HEAD, BODY)
    return Recipe(
        setup,
        (stage,),
        groups if shared_head else groups._replace(private=(SECOND_HEAD,)),
        Needs(("coarse", "server"), every_one=True),
        # A client's own head is for coarse labels, so the global network predicts for all.
        network=lambda state: (groups.combine(state.params), state.model_state),
        check=lambda data: check_one_space(data) if shared_head else [],
    )


def class_term(setup: Setup, group: str, name: str) -> Term:
    """Return the cross-entropy of the main head's outputs on class labels, weakly augmented, for
    one parameter group.

    Args:
        setup: the run.
        group: parameter group that the loss moves; its stream has the same name.
        name: name of the term.
    """
    view = augmented_view(setup, group)

    def loss(step: Step) -> Array:
        batch = step.streams[group]
        return batch_cross_entropy(
            step.outputs[view.name].logits, batch.observed, batch.mask, loss=setup.loss
        )

    return Term(name, (view,), loss, group=group)


def _with_class_labels(setup: Setup, head_epochs: int, body_epochs: int) -> Recipe:
    """Return FedRep with class labels at the clients."""
    if HEAD not in (found := jax.eval_shape(setup.model.init, jax.random.key(0))[0]):
        raise ValueError(
            "fedrep trains the last layer apart: call it 'head'; this network has "
            f"{', '.join(found)}"
        )
    sampler = _class_epochs(setup.batch_size, head_epochs, body_epochs, setup.max_labelled)
    terms = tuple(class_term(setup, group, group) for group in (HEAD, BODY))

    def mean_head(state: ServerState) -> tuple[PyTree, PyTree]:
        mean = jax.tree.map(lambda heads: jnp.mean(heads, axis=0), state.clients.params[HEAD])
        head = packing(state.params[HEAD]).unpack(mean)
        return merged({**state.params, HEAD: head}), state.model_state

    stage = Stage(Training(terms, sampler), labelled_quota="only")
    groups = second_head.by_head(HEAD, BODY)._replace(private=(HEAD,))
    return Recipe(setup, (stage,), groups, network=mean_head, client_model=own_model(groups))


def _class_epochs(batch_size: int, head_epochs: int, body_epochs: int, most: int) -> Sampler:
    """Return a sampler of epochs over the examples with a class label: first the head's stream,
    then the body's.
    """

    def of(stream: str, passes: int) -> Sampler:
        return epochs(stream, lambda client: client.num_labelled, batch_size, passes, most)

    return in_turn(of(HEAD, head_epochs), of(BODY, body_epochs))


def _without_server_head(sent: tuple[str, ...], outcome: RoundResult) -> Traffic:
    """Return the bytes sent: the body both ways, and the clients' head if it is shared; the
    server's head never leaves it.
    """
    before = outcome.before
    numbers = count_parameters([before.params[group] for group in sent]) + count_parameters(
        before.model_state
    )
    both_ways = count(jnp.sum(outcome.context.valid), BYTES_PER_NUMBER * numbers)
    return Traffic(both_ways, both_ways, model_down=False, model_up=False)
