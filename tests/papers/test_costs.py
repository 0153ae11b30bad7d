"""All rows of ProtoFSSL's Tables 1 and 2, from the networks themselves."""

import pytest

from experiments.papers.costs import (
    Work,
    client_with,
    fedmatch_cost,
    fixmatch_cost,
    mixmatch_cost,
    protofssl_cost,
)

SMALL = Work(labelled=3, unlabelled=10, operations=2, model_bytes=100, passes=4)


def client_of(network: str) -> Work:
    """A client of the paper, with one of its networks."""
    return client_with({"name": network}, 10, (32, 32, 3))


@pytest.mark.parametrize(
    ("network", "cost", "printed"),
    [
        ("resnet9", mixmatch_cost, (782.0, 52.6)),
        ("resnet9", fixmatch_cost, (782.0, 52.6)),
        ("resnet9", fedmatch_cost, (1526.0, 115.6)),
        ("resnet8", lambda work: protofssl_cost(work, 2, 10, 512), (447.9, 52.6)),
    ],
)
def test_rows_of_table_2(network, cost, printed):
    assert cost(client_of(network)).rounded == printed


def test_what_the_paper_says_of_table_2():
    ours = protofssl_cost(client_of("resnet8"), 2, 10, 512)
    theirs = fedmatch_cost(client_of("resnet9"))
    assert ours.bytes < theirs.bytes / 2
    assert theirs.operations / ours.operations == pytest.approx(3.4, abs=0.05)
    naive = fixmatch_cost(client_of("resnet9"))
    assert naive.operations / ours.operations == pytest.approx(1.7, abs=0.05)


def test_formulas_count_passes_views_and_helpers():
    assert mixmatch_cost(SMALL, augmentations=3) == (2 * (3 + 30) * 4, 200)
    assert fedmatch_cost(SMALL, num_helpers=3, helper_interval=2) == (2 * (3 + 50) * 4, 700)
    assert protofssl_cost(SMALL, 3, 7, 5) == (2 * 13 * 4 + 105 * 10 * 4 + 2 * 3, 200 + 4 * 140)
