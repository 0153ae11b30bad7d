"""The three levels in XCLP: the same labels, confidences and scores, bit for bit, and counters
that agree.
"""

import json

import jax
import numpy as np
import pytest

from fedjax_ssl import graph, presets
from fedjax_ssl.runs.loop import run as run_experiment
from fedjax_ssl.secure import DROPS, SERVER, TooFewClients, __main__, protocols, wire
from fedjax_ssl.secure.real import RealProtocols
from tests.graph.test_exchange import BITS, LABELS, PAPER, ROWS, label
from tests.secure.parties import Recorder

LEVELS = ("ideal", "accounted", "real")


def run(level, settings=PAPER, labels=LABELS, **options):
    chosen = protocols(level, BITS, **options)
    return label(settings, chosen.exchange, labels=labels), chosen


def assert_equal(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_levels_agree():
    """Also with `graph.IDEAL`, which knows nothing of sessions, and with the kernels' labels."""
    found = {level: run(level) for level in LEVELS}
    for result, _ in found.values():
        assert_equal(result, label(PAPER, graph.IDEAL))
    np.testing.assert_array_equal(found["real"][0].labels, label(PAPER).labels)
    assert (
        found["real"][1].traffic == found["accounted"][1].traffic
        and not found["ideal"][1].traffic.bytes
    )
    assert not found["real"][1].refused
    phases = {phase for phase, *_ in found["real"][1].traffic.bytes}
    assert (
        phases
        == {"keys", "hamming", "columns", "sums"}
        == {phase for phase, _ in found["real"][1].seconds}
    )


@pytest.mark.parametrize(
    "phase",
    [
        pytest.param(phase, marks=[pytest.mark.thorough] * (phase in ("keys", "result")))
        for phase in DROPS
    ],
)
def test_dropouts(phase):
    """The table of the spec, section 6.5, with clients 2, 5, 9 and a minimum of two; client 9
    vanishes.
    """
    options = dict(drop={9: phase}, min_clients=2)
    ideal, real, accounted = (run(level, **options) for level in ("ideal", "real", "accounted"))
    assert_equal(real[0], ideal[0])
    assert real[1].traffic == accounted[1].traffic
    gone = ROWS["clients"] == 9
    found = real[0]
    everybody = label(PAPER, graph.IDEAL)
    own = np.where(ROWS["valid"], LABELS, -1)
    np.testing.assert_array_equal(found.labels[gone], own[gone])  # it keeps what it knew
    np.testing.assert_array_equal(found.scores[gone], 0)
    if phase in ("keys", "hamming"):  # as if it was never invited: no point of it in the graph
        codes = np.where(gone, False, ROWS["valid"])
        alone = label(PAPER, graph.IDEAL, valid=codes)
        np.testing.assert_array_equal(found.labels[~gone], alone.labels[~gone])
        np.testing.assert_allclose(found.scores[~gone], alone.scores[~gone], atol=1e-5)
    elif phase == "result":  # the others know nothing of it
        np.testing.assert_array_equal(found.scores[~gone], everybody.scores[~gone])
    else:  # its points stay, its labels do not count
        without = label(PAPER, graph.IDEAL, labels=np.where(gone, -1, LABELS))
        np.testing.assert_array_equal(found.labels[~gone], without.labels[~gone])
        np.testing.assert_allclose(found.scores[~gone], without.scores[~gone], atol=1e-6)


def test_a_client_that_vanishes_inside_a_pair():
    """Its half never comes: the pair is unknown, and so are all later ones of this client."""
    codes = {c: np.arange(2, dtype=np.uint32)[:, None] + np.uint32(c) for c in range(3)}
    real = protocols("real", BITS // 2)
    real.network.leaves = {1: wire.DistanceShare}
    real.begin({c: 2 for c in codes})
    assert (real.distances(0, 1, codes[0], codes[1]) == BITS // 2 + 1).all()
    assert (real.distances(1, 2, codes[1], codes[2]) == BITS // 2 + 1).all()
    np.testing.assert_array_equal(
        real.distances(0, 2, codes[0], codes[2]), graph.IDEAL.distances(0, 2, codes[0], codes[2])
    )
    assert real.without_distances() == {1}


def test_ideal_repeats_and_real_differs_in_bytes():
    first = run("ideal")[0]
    second = run("ideal")[0]
    assert_equal(first, second)
    sent = []
    for _ in range(2):
        transport = Recorder()
        real = RealProtocols(BITS, transport=transport)
        assert_equal(label(PAPER, real.exchange), first)
        sent.append([data for *_, data in transport.sent])
    assert [len(data) for data in sent[0]] == [len(data) for data in sent[1]]
    assert not set(sent[0]) & set(sent[1])


def test_the_seed_reaches_the_clients_and_not_the_server():
    transport = Recorder()
    seed = bytes(range(100, 132))
    real = RealProtocols(BITS, transport=transport, seed=seed)
    real.begin({0: 1, 1: 1, 2: 0})
    sent = [(s, r) for s, r, data in transport.sent if wire.MESSAGES[data[5] - 1] is wire.Seed]
    assert sent == [(0, 1), (0, 2)] and not any(seed in data for *_, data in transport.sent)


def test_columns_that_differ_are_seen():
    """A server that sends a client other columns than it told everybody."""
    real = protocols("real", BITS)
    real.begin({0: 1, 1: 1, 2: 1})
    pack = real._endpoints[SERVER].pack

    def lying(receiver, message, attempt=0):
        if receiver == 1 and isinstance(message, wire.Columns):
            message = message._replace(columns=message.columns + 1)
        return pack(receiver, message, attempt)

    real._endpoints[SERVER].pack = lying
    real.columns({c: np.ones((3, 1), np.float32) for c in range(3)})
    ((who, error),) = real.refused
    assert who == 1 and "do not fit the digest" in str(error)
    with pytest.raises(TooFewClients):
        real.row_sums({c: np.ones((3, 1), np.uint32) for c in range(3)}, np.arange(3))


@pytest.mark.thorough
def test_a_run_predicts_with_protocols(tmp_path):
    """The run's summary has their bytes; predictions are those of the plain computation."""
    rows = {}
    for level in LEVELS:
        config = presets.one_shot("inputs", rounds=0)
        config.prediction.update(
            {"predictors": "xclp", "variant": "paper", "num_bits": 32, "protocol": level}
        )
        config.prediction.num_neighbors = 5
        run_experiment(config, tmp_path / level)
        summary = json.loads((tmp_path / level / "summary.json").read_text())
        rows[level] = summary["predictions"][0] | {"seconds": None}
    assert rows["real"] == rows["accounted"] and rows["real"].pop("protocol_bytes") > 10**7
    assert rows["real"] == rows["ideal"]
    files = [(tmp_path / level / "predictions.csv").read_text() for level in LEVELS]
    assert len(set(files)) == 1


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--drop", "3@later"], "--drop has '3@later'"),
        (["--drop", "20@mask"], "--drop names client 20; there are clients 0..13"),
        (["--clients", "2"], "--clients is 2; it must be 3..14"),
    ],
)
@pytest.mark.thorough
def test_mistakes_on_the_command_line(arguments, message, capsys):
    assert __main__.main(["secure", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.thorough
@pytest.mark.parametrize(
    "arguments", [["--drop", "3@mask,1@sums"], ["--hamming", "paillier", "--key-bits", "512"]]
)
def test_the_command(arguments, capsys):
    assert __main__.main(["secure", "--clients", "5", "--bits", "64", *arguments]) == 0
    shown = capsys.readouterr().out
    assert (
        "labels and confidences equal those of level 'ideal': yes" in shown
        and "by the formulas" in shown
    )
