"""Messages of a round: download, upload, sums of uploads, and the clients' numbers for the log.

`Upload` is all that a client sends after its local training: `ClientResult` -> `Upload` -> `Total`
-> `ServerState`. The server sees `terms` and which uploads count client by client, and everything
else only as a sum (`Total`), added in client order.
"""

from typing import Any, NamedTuple

from jaxtyping import Array, Bool, Float, Int, Key

from fedjax_ssl.federated.contract import Grouped, Kept, Now, Params, Validation

PyTree = Any


class Download(NamedTuple):
    """Message to every client of the cohort, and its round."""

    key: Key[Array, ""]  # random key of the round
    now: Now  # number of the round, and messages to all clients
    learning_rate: Float[Array, ""]
    # ^ learning rate of local steps, before the factor of a `Training`
    params: Params  # global parameters, by group
    model_state: PyTree  # global batch statistics
    optimizer: PyTree  # state of the federated optimizer, from which clients may start differently
    local_optimizer: dict[str, PyTree]
    # ^ state of the local optimizer by group, if all clients start from the same one
    terms: dict[str, PyTree]  # server state of the terms, from which local states start
    inputs: Array  # raw inputs of all examples: the simulation has them in one place
    validation: Validation  # validation examples of the run
    test: Validation | None = None  # test examples, for the log alone
    uploads: PyTree = ()  # state of the upload transforms


class Upload(NamedTuple):
    """Message from a client to the server after its training; upload transforms change its
    values.
    """

    update: Grouped  # change of its parameters since the download, by shared group
    statistics: Float[Array, " s"]  # change of its batch statistics, in one vector
    optimizer: dict[str, PyTree]  # state of its local optimizer by group, if clients share one
    terms: dict[str, PyTree]  # uploads of the terms that the server sees client by client
    averages: dict[str, PyTree]
    # ^ uploads of the terms of which the server sees the mean; an upload transform may add a name
    weight: Float[Array, ""]  # weight of the client in the average
    arrived: Bool[Array, ""]  # False: the whole upload is lost, and the client keeps its old state
    reported: PyTree = ()  # report of the federated optimizer; the server sees the sum


class Work(NamedTuple):
    """Local work; 0 for a client that was dropped."""

    loss: Float[Array, ""]  # sum over its steps
    steps: Int[Array, ""]  # local steps that it took
    examples: Int[Array, ""]  # rows that entered a loss
    dropped: Int[Array, ""]  # 1 for a client that was dropped


class Total(NamedTuple):
    """Uploads added up over a cohort in client order, and its work for the log."""

    update: Grouped  # sum of changes times weights
    weights: dict[str, Array]  # sum of these weights, by shared group
    reported: PyTree  # sum of `Upload.reported`
    statistics: Float[Array, " s"]  # sum of statistics times weight
    optimizer: dict[str, tuple[Array, PyTree]]
    # ^ by group: sum of weights, and of states times weight
    averages: dict[str, PyTree]  # by term: sum of values times weight
    weight: Float[Array, ""]  # sum of weights
    work: Work  # local work, for the log


class Arrivals(NamedTuple):
    """Uploads that are not added up, client by client, leading axis p."""

    terms: dict[str, PyTree]  # `Upload.terms`
    counts: Bool[Array, " p"]  # True for clients that trained and whose upload arrived
    arrived: Bool[Array, " p"]  # False for a lost upload
    lost: Bool[Array, " p"]  # True for clients that dropped out of the round
    kept: Kept  # new state of the clients
    measured: dict[str, PyTree]
    # ^ measurements by term, for its metrics; a real server would not see them
    parts: Total | tuple[()] = ()
    # ^ uploads client by client, if the server does not combine them by their sum
