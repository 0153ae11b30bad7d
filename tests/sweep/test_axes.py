"""What `--set`, `--seeds`, `--zip` and `--random` mean."""

import pytest

from fedjax_ssl.config import ConfigError
from fedjax_ssl.sweep.axes import Axis, Range, parse_axis, parse_seeds, points

RATE = parse_axis("optimizer.learning_rate=0.03,0.1")
METHOD = parse_axis("config.method.name=fedavg, xclp")


@pytest.mark.parametrize(
    ("text", "axis"),
    [
        ("optimizer.learning_rate=0.03,0.1", Axis("optimizer.learning_rate", ("0.03", "0.1"))),
        ("model.hidden=(64,64),(128,)", Axis("model.hidden", ("(64,64)", "(128,)"))),
        ("data.path=../a.npz", Axis("data.path", ("../a.npz",))),
        ("optimizer.learning_rate=0.001..1", Axis("optimizer.learning_rate", Range(0.001, 1.0, True, False))),
        ("optimizer.momentum=linear:0..0.9", Axis("optimizer.momentum", Range(0.0, 0.9, False, False))),
        ("optimizer.local_epochs=1..10", Axis("optimizer.local_epochs", Range(1.0, 10.0, False, True))),
    ],
)
def test_values_and_ranges_are_read(text, axis):
    assert parse_axis(text) == axis


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("learning_rate", "not of the form FIELD=VALUES"),
        ("optimizer.learning_rate=", "not of the form"),
        ("optimizer.learning_rate=0.1,,0.3", "empty value"),
        ("optimizer.learning_rate=0.1,0.1", "names 0.1 twice"),
        ("optimizer.learning_rate=1..0.1", "must be below the second"),
        ("optimizer.learning_rate=0..0.5", "linear:0..0.5"),
    ],
)
def test_a_mistake_gets_one_message(text, said):
    with pytest.raises(ConfigError, match=said):
        parse_axis(text)


def test_seeds_are_a_number_or_a_list():
    assert parse_seeds("3") == (0, 1, 2) and parse_seeds("7,0") == (7, 0) and parse_seeds(None) is None
    for wrong in ("0", "-1", "a", "1,"):
        with pytest.raises(ConfigError, match="number"):
            parse_seeds(wrong)
    with pytest.raises(ConfigError, match="a single seed is given as --set seed=20261122"):
        parse_seeds("20261122")
    with pytest.raises(ConfigError, match="twice"):
        parse_seeds("3,1,3")


def test_all_combinations_with_all_seeds():
    found = points([METHOD, RATE], (0, 1))
    assert len(found) == 8
    assert found[1] == {"method.name": "fedavg", "optimizer.learning_rate": "0.03", "seed": 1}


def test_zip_pairs_the_values():
    assert points([METHOD, RATE], None, zipped=True) == [
        {"method.name": "fedavg", "optimizer.learning_rate": "0.03"},
        {"method.name": "xclp", "optimizer.learning_rate": "0.1"},
    ]
    with pytest.raises(ConfigError, match=r"method\.name has 2, optimizer\.momentum has 1"):
        points([METHOD, parse_axis("optimizer.momentum=0.9")], None, zipped=True)


def test_random_points_lie_in_their_ranges_and_more_of_them_begin_with_the_same():
    axes = [parse_axis("optimizer.learning_rate=0.001..1"), parse_axis("optimizer.local_epochs=1..3"), METHOD]
    many = points(axes, None, random=200)
    rates = [point["optimizer.learning_rate"] for point in many]
    assert all(0.001 <= rate <= 1 for rate in rates)
    assert 70 < sum(rate < 0.0316 for rate in rates) < 130  # half of the logarithm
    assert {point["optimizer.local_epochs"] for point in many} == {1, 2, 3}
    assert {point["method.name"] for point in many} == {"fedavg", "xclp"}
    assert points(axes, None, random=20) == many[:20] != points(axes, None, random=20, seed=1)


def test_what_does_not_go_together_is_refused():
    with pytest.raises(ConfigError, match="given twice"):
        points([RATE, RATE], None)
    with pytest.raises(ConfigError, match="say how many points"):
        points([parse_axis("optimizer.learning_rate=0.001..1")], None)
    with pytest.raises(ConfigError, match="exclude each other"):
        points([RATE], None, zipped=True, random=3)
    with pytest.raises(ConfigError, match="seed has values of its own beside --seeds"):
        points([parse_axis("seed=4")], [0, 1])
