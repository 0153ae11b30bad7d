"""The plan of a sweep: what its settings mean, runs, names, programs, `sweep.json`, and how a
sweep grows.
"""

import sys

import pytest

from fedjax_ssl.config import ConfigError
from fedjax_ssl.folder.folder_lock import RunFolderError
from fedjax_ssl.sweep import sweep_plan as plans
from fedjax_ssl.sweep.axes import Axis, Range, parse_axis, parse_seeds, points

RATE = parse_axis("optimizer.learning_rate=0.03,0.1")
METHOD = parse_axis("config.method.name=fedavg, xclp")


@pytest.mark.parametrize(
    ("text", "axis"),
    [
        ("optimizer.learning_rate=0.03,0.1", Axis("optimizer.learning_rate", ("0.03", "0.1"))),
        ("model.hidden=(64,64),(128,)", Axis("model.hidden", ("(64,64)", "(128,)"))),
        (
            "prediction.predictors='network,xclp',\"xclp\"",
            Axis("prediction.predictors", ("network,xclp", "xclp")),
        ),
        ("data.path=../a.npz", Axis("data.path", ("../a.npz",))),
        (
            "optimizer.learning_rate=0.001..1",
            Axis("optimizer.learning_rate", Range(0.001, 1.0, True, False)),
        ),
        (
            "optimizer.momentum=linear:0..0.9",
            Axis("optimizer.momentum", Range(0.0, 0.9, False, False)),
        ),
        (
            "optimizer.local_epochs=1..10",
            Axis("optimizer.local_epochs", Range(1.0, 10.0, False, True)),
        ),
    ],
)
def test_values_and_ranges_are_read(text, axis):
    assert parse_axis(text) == axis


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("learning_rate", "not of the form FIELD=VALUES"),
        ("optimizer.learning_rate=0.1,0.1", "names 0.1 twice"),
        ("optimizer.learning_rate=1..0.1", "must be below the second"),
        ("optimizer.learning_rate=0..0.5", "linear:0..0.5"),
    ],
)
def test_a_mistake_gets_one_message(text, said):
    with pytest.raises(ConfigError, match=said):
        parse_axis(text)


def test_seeds_are_a_number_or_a_list():
    assert (
        parse_seeds("3") == (0, 1, 2) and parse_seeds("7,0") == (7, 0) and parse_seeds(None) is None
    )
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
    axes = [
        parse_axis("optimizer.learning_rate=0.001..1"),
        parse_axis("optimizer.local_epochs=1..3"),
        METHOD,
    ]
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


# Runs, names, programs.


def planned(*texts, seeds=(0, 1), config="digits_fedavg", **how):
    return plans.from_settings(config, points([parse_axis(text) for text in texts], seeds, **how))


METHODS = "method.name=fedavg,xclp"
RATES = "optimizer.learning_rate=0.03,0.1"


def test_seeds_and_numbers_share_a_program_and_methods_do_not():
    plan = planned(METHODS, RATES)
    assert [len(runs) for runs in plan.programs] == [4, 4]
    assert plan.fields == ("method.name", "optimizer.learning_rate", "seed")
    assert plan.runs[0].name == "method=fedavg,lr=0.03,seed=0"
    assert plan.runs[-1].name == "method=xclp,lr=0.1,seed=1"
    assert (
        plan.runs[-1].config["seed"] == 1
        and plan.runs[-1].config["optimizer"]["learning_rate"] == 0.1
    )


@pytest.mark.parametrize(
    ("text", "programs"),
    [
        ("optimizer.momentum=0.5,0.9", 1),
        ("optimizer.momentum=0,0.9", 2),  # without momentum there is no momentum buffer
        ("optimizer.batch_size=5,10", 2),
        ("supervision.labels=1,2", 1),  # tables of one width
        ("participation.lost=0.1,0.3", 1),
        ("federated.name=fedprox,fedavg", 2),
        ("checkpoint_every=1,2", 1),
    ],
)
def test_what_decides_code_or_shapes_makes_a_program(text, programs):
    if text.startswith("checkpoint_every"):  # and is not even another run
        with pytest.raises(ConfigError, match="same run"):
            planned(text, seeds=None)
        return
    assert len(planned(text).programs) == programs


def test_a_setting_of_a_method_is_for_the_methods_that_have_it():
    plan = planned(METHODS, "method.alpha=0.9,0.99", "method.num_bits=256", seeds=(0,))
    assert [run.name for run in plan.runs] == [
        "method=fedavg,seed=0",
        "method=xclp,alpha=0.9,seed=0",
        "method=xclp,alpha=0.99,seed=0",
    ]
    with pytest.raises(
        ConfigError,
        match=r"none of the methods fedavg, xclp has the setting 'method\.alhpa'.*alpha",
    ):
        planned(METHODS, "method.alhpa=0.9")


def test_weights_of_a_part_share_a_program():
    settings = ("method.name=fedavg,compose", "method.parts=('supervised','fixmatch')")
    plan = planned(*settings, "method.fixmatch.weight=1.0,2.0", seeds=(0,))
    assert [run.name for run in plan.runs][1:] == [
        "method=compose,weight=1,seed=0",
        "method=compose,weight=2,seed=0",
    ]
    assert len(plan.programs) == 2


def test_names_are_file_names_and_differ():
    plan = planned("model.hidden=(64,64),None", "precision=float32,bf16")
    names = [run.name for run in plan.runs]
    assert len(set(names)) == len(names) == 8
    assert (
        "hidden=64-64,precision=bf16,seed=0" in names
        and "hidden=None,precision=bf16,seed=1" in names
    )
    long = planned("data.path=" + ",".join(letter * 150 for letter in "xy"), seeds=(0,))
    assert len({run.name for run in long.runs}) == 2 and all(
        len(run.name) <= 100 for run in long.runs
    )


def test_the_plan_survives_its_file(tmp_path):
    plan = planned(METHODS, "model.hidden=(64,64),(128,)")
    plans.save(tmp_path, plan, ["fedjax-ssl", "sweep"])
    stored = plans.load(tmp_path)
    assert stored == plan
    assert plans.config_of(stored.runs[0]).model.hidden == (64, 64)
    assert plans.load(tmp_path / "nowhere") is None
    (tmp_path / "sweep.json").write_text("{")
    with pytest.raises(RunFolderError, match="damaged"):
        plans.load(tmp_path)


def test_a_sweep_grows_and_does_not_shrink(tmp_path):
    plan = planned(RATES)
    more = plans.extended(
        plan, planned(METHODS, "optimizer.learning_rate=0.03,0.1,0.3", seeds=(0, 1, 2)), tmp_path
    )
    assert more.runs[:4] == plan.runs  # names stay, though there are more fields now
    assert len(more.runs) == 18 and [len(runs) for runs in more.programs] == [9, 9]
    assert len({run.name for run in more.runs}) == 18
    with pytest.raises(
        RunFolderError, match=r"2 runs that this command leaves out: lr=0\.03,seed=1"
    ):
        plans.extended(plan, planned(RATES, seeds=(0,)), tmp_path)
    with pytest.raises(RunFolderError, match="rounds: 80 -> 20"):
        plans.extended(plan, planned(RATES, "rounds=20"), tmp_path)
    here, moved = (planned(f"data.path={place}.npz", config="npz") for place in ("old", "new"))
    with pytest.raises(RunFolderError, match=r'"old.npz" -> "new.npz"\).* goes on with a link'):
        plans.extended(here, moved, tmp_path)


def test_a_file_yields_configs(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "beside_the_study.py").write_text("METHODS = ('fedavg', 'xclp')\n")
    path = tmp_path / "study.py"
    begin = (
        "from fedjax_ssl import presets\nfrom beside_the_study import METHODS\ndef get_sweep():\n"
    )
    path.write_text(
        f"{begin}    for method in METHODS:\n"
        "        for batch in (5, 10):\n"
        "            config = presets.digits_by_writer(method, 5)\n"
        "            config.optimizer.batch_size = batch\n"
        "            yield config\n"
    )
    plan = plans.from_file(path, (0, 1))
    assert len(plan.runs) == 8 and len(plan.programs) == 4
    assert plan.runs[0].name == "method=fedavg,batch=5,seed=0"
    for body, said in (
        (
            "    yield 1 / 0\n",
            r"get_sweep of .*study.py failed: ZeroDivisionError.*study.py, line 4",
        ),
        ("    yield 3\n", "yields something that is no config"),
    ):
        path.write_text(begin + body)
        with pytest.raises(ConfigError, match=said):
            plans.from_file(path)
    path.write_bytes(b"# \xe9\ndef get_sweep():\n    yield\n")  # Latin-1, without saying so
    assert plans.is_sweep_file(str(path)) and not plans.is_sweep_file("digits_fedavg")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("supervision.labels=2,5", ["labels=5 sees 55 labels, labels=2 22: not comparable."]),
        (
            "data.test_clients=2,3",
            [
                "tested on other examples than test_clients=2,seed=0",
                "test_clients=3 sees 55 labels, test_clients=2 60: not comparable.",
            ],
        ),
        ("optimizer.learning_rate=0.1,0.2", []),
        ("data.standardize=auto,client", []),  # examples are known as they are read
        ("partition.name=natural,iid", []),  # equal clients of equally many labels
        ("data.name=digits,npz", ["is not known: "]),
    ],
)
def test_a_plan_says_what_a_report_cannot_pair(text, said):
    config = "digits_fedavg" if "partition" in text else "digits_xclp"
    axes = [
        parse_axis(text),
        *([parse_axis("partition.num_clients=11")] if "partition" in text else []),
    ]
    found = plans.apart(plans.from_settings(config, points(axes, (0, 1))))
    assert len(found) == len(said) and all(
        words in line for words, line in zip(said, found, strict=True)
    )


def test_a_stored_run_is_the_same_without_a_setting_that_is_gone():
    now = {"method": {"name": "xclp"}}
    stored = {"method": {"name": "xclp", "lost_after": 0.0}, "data": {"went": None}}
    assert plans.identity(stored) == plans.identity(now)
    stored["method"]["lost_after"] = 0.5
    assert plans.identity(stored) != plans.identity(now)


def test_methods_that_are_compared_have_the_labels_of_their_config(tmp_path):
    """Each by itself has those that it was made for."""
    plan = planned("method.name=fedavg,fedmatch,fedrgd,semifl", config="digits", seeds=(0,))
    places = {
        run.point["method.name"]: (
            run.config["supervision"]["name"],
            run.config["supervision"]["labels"],
        )
        for run in plan.runs
    }
    assert places.pop("semifl") == ("server", 50)  # its server has to have labels
    assert {*places.values()} == {("per_client", 5)}
    # what suits the method with labels at the clients
    assert plan.runs[2].config["method"]["labels"] == "client"
    assert plans.apart(plan) == [
        "  semifl sees 50 labels, fedavg 55: not comparable. semifl is not made for "
        "supervision.name=per_client"
    ]
    for config, axis, place in (
        ("digits", "method.name=fedmatch", "per_class"),
        ("digits:fedmatch", "method.name=fedavg,fedmatch", "per_class"),
        ("digits:semifl", "method.name=semifl,fixmatch,pooled", "server"),
    ):
        runs = planned(axis, config=config, seeds=(0,)).runs
        assert {run.config["supervision"]["name"] for run in runs} == {place}


def test_a_config_that_chooses_labels_by_method_is_told_how_they_would_be_the_same(tmp_path):
    path = tmp_path / "study.py"
    path.write_text(
        "from fedjax_ssl import presets\n"
        "def get_config(argument='fedavg', method=None):\n"
        "    return presets.source('digits', argument, method)\n"
    )
    plan = planned("method.name=fedavg,fedmatch", config=str(path), seeds=(0,))
    assert plans.apart(plan) == [
        "  fedmatch sees 550 labels, fedavg 55: not comparable. Same labels: "
        "--set supervision.name=per_client --set supervision.labels=5"
    ]
    path.write_text(path.read_text().replace("argument='fedavg', method=None", "method"))
    path.write_text(path.read_text().replace("argument, method", "method"))
    assert len(planned("method.name=fedavg,fixmatch", config=str(path), seeds=(0,)).runs) == 2
