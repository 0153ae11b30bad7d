"""The network's own predictions as pseudo-labels, new in every round, or made once and then frozen
(FedSem+).

An example without a label gets the class that the global network predicts and the weight 1 -
entropy / log K of its softmax; a labelled one keeps its label with weight 1.

References:
    `network_pseudo_label`: the baseline FedAvg+network of Scott et al., TMLR 2023, arXiv
    2210.06434, after Lee, Pseudo-label, ICML workshop 2013. `fedsem`: Albaseer et al., Exploiting
    unlabeled data in smart cities using federated edge learning, IWCMC 2020; with entropy weights
    as in Scott et al.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedjax_ssl.checks import checked
from fedjax_ssl.federated import Client, Recipe, RoundContext, Setup
from fedjax_ssl.federated.contract import PyTree
from fedjax_ssl.keys import named_key
from fedjax_ssl.methods.parts.recommended import AT_CLIENTS
from fedjax_ssl.methods.parts.setting_types import CountOrZero
from fedjax_ssl.methods.parts.terms import PseudoLabels, network_pseudo_labels, pseudo_label_term
from fedjax_ssl.methods.parts.two_stages import after_labelled_stage, mixed_stage

_FIELDS = {"per_client": {**AT_CLIENTS, "method.warmup_rounds": 40}}
RECOMMENDED = {"network_pseudo_label": _FIELDS, "fedsem": _FIELDS}


@checked
def network_pseudo_label(
    setup: Setup, *, warmup_rounds: CountOrZero = 0, augment_predictions: bool = False
) -> Recipe:
    """FedAvg+network: target = the network's class, weight = 1 - entropy / log K of its softmax.

    Args:
        setup: the run.
        warmup_rounds: rounds of labels-only training at the start.
        augment_predictions: predict on weakly augmented examples, as the authors' code does.
    """

    def prepare(state: PyTree, context: RoundContext) -> tuple[PseudoLabels, PyTree]:
        key = named_key(context.key, "predictions") if augment_predictions else None
        return network_pseudo_labels(setup, context, context.clients, key), state

    return after_labelled_stage(
        setup, mixed_stage(setup, pseudo_label_term(setup, prepare)), warmup_rounds
    )


@checked
def fedsem(setup: Setup, *, warmup_rounds: CountOrZero = 0) -> Recipe:
    """FedSem+: labels every client's examples at the start of stage 2 and keeps these
    pseudo-labels.

    Args:
        setup: the run.
        warmup_rounds: rounds of labels-only training at the start; with 0, the untrained network
            makes the pseudo-labels.

    Raises:
        ValueError: unlabelled examples come in parts.
    """
    if setup.num_parts > 1:
        raise ValueError(
            f"fedsem labels every example once, but unlabelled examples come in {setup.num_parts} "
            "parts; choose another method or config.partition.parts=1"
        )

    def init(key: Array, params: PyTree, model_state: PyTree, clients: Client) -> PseudoLabels:
        nothing = jnp.zeros(clients.rows.shape, jnp.result_type(float))
        return PseudoLabels(jnp.full(clients.rows.shape, -1, jnp.int32), nothing, nothing)

    def prepare(state: PseudoLabels, context: RoundContext) -> tuple[PseudoLabels, PseudoLabels]:
        state = jax.lax.cond(
            context.number == 0,
            lambda: network_pseudo_labels(setup, context, context.all_clients),
            lambda: state,
        )
        return jax.tree.map(lambda table: table[context.clients.id], state), state

    return after_labelled_stage(
        setup, mixed_stage(setup, pseudo_label_term(setup, prepare, init=init)), warmup_rounds
    )
