"""What `data check` prints runs, whatever labels are there."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pandas
import pytest
from PIL import Image

from fedjax_ssl import cli
from fedjax_ssl.cli.proposal import Labels, composition_for
from fedjax_ssl.config import ConfigError, load

ROOT = Path(__file__).resolve().parents[2]
RNG = np.random.default_rng(0)
ROWS = 120
SITE = np.array(["north", "south", "west"])[np.arange(ROWS) % 3]
CLASS = RNG.integers(0, 3, ROWS)
POINTS = (RNG.normal(size=(ROWS, 4)) + CLASS[:, None]).astype(np.float32)
SEEN = np.arange(ROWS) % 4 == 0
FEW = np.where(SEEN, CLASS, -1)
COARSE = (CLASS > 0).astype(int)
SETS = RNG.integers(0, 2, ROWS)
MATRIX = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]])


def save(folder: Path, **arrays) -> Path:
    given = {"inputs": POINTS, "labels": FEW, "client": SITE, **arrays}
    np.savez(folder / "scans.npz", **{name: one for name, one in given.items() if one is not None})
    return folder / "scans.npz"


def shares(folder: Path) -> str:
    counts = pandas.crosstab([SITE, SETS], CLASS, normalize="index")
    counts.index.names = ["client", "set"]
    counts.columns = ["0", "1", "2"]
    counts.to_csv(folder / "shares.csv")
    return f"--data.proportions={folder / 'shares.csv'}"


def table(folder: Path, **columns) -> Path:
    names = [
        name if known else ""
        for name, known in zip(np.array(list("abc"))[CLASS], SEEN, strict=True)
    ]
    given = {"Alter": np.arange(ROWS) % 50, "Blutdruck": RNG.normal(120, 9, ROWS).round(2)}
    given |= {"Diagnose": names, "Klinik": SITE, **columns}
    pandas.DataFrame(given).to_csv(folder / "patients.csv", index=False)
    return folder / "patients.csv"


def pictures(folder: Path, bright: int = 0, with_table: bool = False, side: int = 12) -> Path:
    rows = []
    for number in range(60):
        site, kind = ("north", "south")[number % 2], ("ill", "well")[number // 2 % 2]
        place = Path(site) if with_table else Path(site, kind)
        (folder / "scans" / place).mkdir(parents=True, exist_ok=True)
        pixels = (
            RNG.integers(0, 90, (side, side)) + bright * (site == "south") + 20 * (kind == "ill")
        )
        Image.fromarray(pixels.astype(np.uint8)).save(folder / "scans" / place / f"{number}.png")
        rows.append((f"{place}/{number}.png", site, kind if number < 20 else ""))
    if with_table:
        frame = pandas.DataFrame(rows, columns=["file", "Klinik", "Befund"])
        frame.to_csv(folder / "scans" / "liste.csv", index=False)
    return folder / "scans"


ROLES = ("--data.label_column=Diagnose", "--data.client_column=Klinik")
# What is made, and the command that is printed for it; a method that does not stand there is FedAvg.
KINDS = {
    "few labels everywhere": (lambda f: [save(f)], "npz:xclp "),
    "every label, several sites": (lambda f: [save(f, labels=CLASS)], "npz "),
    "labels at one site": (
        lambda f: [save(f, labels=np.where(SITE == "north", CLASS, -1))],
        "npz:xclp ",
    ),
    "labels at a server": (
        lambda f: [
            save(
                f,
                client=np.where(SITE == "north", "server", SITE),
                labels=np.where((SITE == "north") & (np.arange(ROWS) < 60), CLASS, -1),
            )
        ],
        "npz:semifl ",
    ),
    "labels at a server that has nothing else": (
        lambda f: [
            save(
                f,
                client=np.where(SITE == "north", "server", SITE),
                labels=np.where(SITE == "north", CLASS, -1),
            )
        ],
        "npz:semifl ",
    ),
    "coarse labels": (lambda f: [save(f, coarse=COARSE)], "npz:fedmt "),
    "coarse labels that go with classes": (
        lambda f: [save(f, coarse=COARSE, correspondence=MATRIX)],
        "npz:mixed ",
    ),
    "sets with shares and labels": (lambda f: [save(f, set=SETS), shares(f)], "npz:mixed "),
    "sets with shares alone": (
        lambda f: [
            save(f, labels=np.full(ROWS, -1), set=SETS, class_names=np.array(["0", "1", "2"])),
            shares(f),
        ],
        "npz:fedul .*--prediction.predictors=network",
    ),
    "sets without shares": (lambda f: [save(f, set=SETS)], "npz:xclp,all "),
    "no sites": (lambda f: [save(f, client=None)], "npz:xclp .*--partition.num_clients=6"),
    "a table": (
        lambda f: [table(f), *ROLES],
        "table:xclp .*--data.label_column=Diagnose --data.client_column=Klinik",
    ),
    "folders of sites of different brightness": (
        lambda f: [pictures(f, bright=100)],
        "folder .*--data.standardize=client",
    ),
    "images with a table": (
        lambda f: [pictures(f, with_table=True, side=34), "--data.label_column=Befund", ROLES[1]],
        "folder:xclp .*--data.label_column=Befund --data.client_column=Klinik",
    ),
}


# ... and the parts of the composition that is printed beside it.
_TERMS = "supervised,fixmatch,prototypes"
_WEAK_TERMS = "channels,graph"
COMPOSED = {
    **dict.fromkeys(
        (
            "few labels everywhere",
            "labels at one site",
            "coarse labels",
            "sets without shares",
            "no sites",
            "a table",
            "images with a table",
        ),
        _TERMS,
    ),
    **dict.fromkeys(
        ("coarse labels that go with classes", "sets with shares and labels"), _WEAK_TERMS
    ),
}


def printed(capsys, *words) -> tuple[int, str]:
    code = cli.main(["data", "check", *map(str, words)])
    return code, capsys.readouterr().out


QUICK = ("a table",)


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=() if kind in QUICK else pytest.mark.thorough) for kind in KINDS],
)
def test_the_command_for_every_kind_of_labels_runs(kind, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDJAX_SSL_DATA", str(tmp_path / "root"))
    make, expected = KINDS[kind]
    code, output = printed(capsys, *make(tmp_path))
    assert code == 0, output
    first, *others = re.findall("^ready: (.*)$", output, re.M)
    assert re.match(f"fedjax-ssl run {expected}", first), output
    parts = re.search("--method.parts=(\\S*)", others[0])[1] if others else ""
    assert parts == COMPOSED.get(kind, ""), output
    sweep = re.search(
        "^with error bars.*, .* say little: (fedjax-ssl sweep .* --seeds 5 .*)$", output, re.M
    )
    assert sweep is not None and cli.main([*shlex.split(sweep[1])[1:], "--dry-run"]) == 0
    assert ("--set method.name=fedavg," in sweep[1]) == (parts != "" or ":semifl" in first)
    quick = re.findall("^quick first look: (.*)$", output, re.M)
    assert len(quick) == (kind == "images with a table")
    for number, command in enumerate([first, *others, *quick] if kind not in QUICK else [first]):
        words = shlex.split(command)[1:]
        folder = tmp_path / f"run{number}"
        assert cli.main([*words, "--rounds=1", "--workdir", str(folder)]) == 0
        assert (folder / "summary.json").exists()


def test_labels_by_site_and_what_is_wrong_with_columns_are_said(capsys, tmp_path):
    columns = {
        "Typ": np.arange(ROWS) % 4,
        "Farbe": np.where(np.arange(ROWS) == 5, "Rot", np.array(["rot", "blau"])[CLASS % 2]),
    }
    path = table(tmp_path, **columns)
    _, output = printed(capsys, path, *ROLES, "--root", tmp_path / "root")
    output = " ".join(output.split())
    assert (
        "labels 30 of 120 training examples have one, at 3 of 3 clients: north (10), south (10), "
        "west (10)"
    ) in output
    assert "(Typ: 0, 1, 2, 3); where they are codes" in output and "data.codes=Typ" in output
    assert "input 'Farbe=Rot' (1 example) is spelt almost like 'Farbe=rot'" in output
    # Sites differ, and medians of all sites do not go with means of each.
    path = table(tmp_path, Druck=100 * (SITE == "west") + np.arange(ROWS) % 7)
    asked = ("--data.missing=median", "--root", tmp_path / "root")
    code, output = printed(capsys, path, *ROLES, *asked)
    assert code == 0 and "makes them alike, with data.missing=drop" in " ".join(output.split())


def test_all_that_is_wrong_with_a_table_is_said_at_once(capsys, tmp_path):
    crp = np.where(np.arange(ROWS) % 9 == 0, "<5", (np.arange(ROWS) % 30).astype(str))
    path = table(tmp_path, CRP=crp, Mass=np.where(np.arange(ROWS) == 8, "", "1.5"))
    root = ("--root", tmp_path / "root")
    code, output = printed(capsys, path, *root)
    said = " ".join(output.split())
    assert code == 2 and "no column 'label'" in said
    assert "--data.label_column=COLUMN; columns of few values, and how many" in said
    assert "Diagnose (3), Klinik (3)" in said
    assert "column 'CRP' holds '<5' in patients.csv, line 2" in said
    assert "1 of 120 rows have missing cells, first patients.csv, line 10; by column: Mass" in said
    assert f"then: fedjax-ssl data check {path}" in output
    code, output = printed(capsys, path, *ROLES, "--data.codes=CRP", "--data.ignore=Mass", *root)
    assert code == 0 and "at 3 of 3 clients: north (10)" in " ".join(output.split())


@pytest.mark.thorough
def test_methods_for_clients_of_four_kinds_are_one_for_all_and_terms_in_one_step(capsys):
    assert cli.main(["choose", "digits_mixed", "--rounds=60"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("digits_mixed: 11 clients, 2 labelled clients, 4 clients with coarse")
    lines = re.findall(r"^  fedjax-ssl (run .*)$", output, re.M)
    assert lines[0].startswith("run digits_mixed --rounds=60 --method.name=mixed --workdir ")
    assert "=compose --method.parts=channels,graph --method.graph.after=30 " in lines[1]
    folders = [line.rpartition(" ")[2] for line in lines]
    assert folders[0] == "runs/digits_mixed_mixed" and len(set(folders)) == len(folders)


@pytest.mark.thorough
@pytest.mark.parametrize("config", ["digits_fixmatch", "digits_semifl", "digits_fedmt"])
def test_what_is_chosen_for_a_config_trains(config, capsys, tmp_path):
    assert cli.main(["choose", config, "--rounds=2"]) == 0
    lines = re.findall(r"^  fedjax-ssl (run .*)$", capsys.readouterr().out, re.M)
    for number, line in enumerate(lines):
        assert cli.main([*shlex.split(line), "--workdir", str(tmp_path / str(number))]) == 0
    assert lines


def test_a_choice_needs_a_name(capsys):
    assert cli.main(["choose"]) == 2
    assert "the config's name, or the path of your data, is missing" in capsys.readouterr().err


def test_the_composition_follows_from_the_labels():
    few = Labels(100, 20)
    assert composition_for(few, 60).settings == {"method.parts": "supervised,fixmatch,prototypes"}
    later = {"method.parts": "channels,graph", "method.graph.after": "30"}
    assert composition_for(few._replace(sets=True), 60).settings == later
    assert composition_for(few._replace(coarse=True, tied=True), 60).settings == later
    assert composition_for(few._replace(coarse=True), 60).labels == ""
    assert composition_for(few._replace(blind_sets=True), 60).labels == "all"
    for alone in (Labels(100, 0, sets=True), Labels(100, 100), few._replace(only_server=True)):
        assert composition_for(alone, 60) is None


def test_data_that_nothing_learns_from_are_not_ready(capsys, tmp_path):
    path = save(tmp_path, labels=np.full(ROWS, -1), class_names=np.array(["0", "1", "2"]))
    code, output = printed(capsys, path)
    assert code == 2 and "not ready: no training example has a label" in output
    np.savez(tmp_path / "one.npz", inputs=POINTS, labels=CLASS, set=SETS)
    code, output = printed(capsys, tmp_path / "one.npz")
    assert code == 2 and "there are sets but no clients" in output


def test_an_error_about_a_file_names_data_check(tmp_path):
    path = table(tmp_path)
    with pytest.raises(
        ValueError, match=f"there is no column 'label'.*what is there: fedjax-ssl data check {path}"
    ):
        from fedjax_ssl import data

        data.load("table", path=path, root=tmp_path / "root")


def test_the_readmes_sweep_compares_methods_with_the_same_labels():
    readme = (ROOT / "README.md").read_text()
    ((config, names),) = re.findall(r"sweep (digits\S*) --set method.name=(\S+)", readme)
    labels = [load(config, {"method.name": name}).supervision for name in names.split(",")]
    assert all(one == labels[0] for one in labels)


@pytest.mark.thorough
def test_few_labels_all_train_and_the_last_round_counts(capsys, tmp_path):
    path = save(tmp_path)
    words = ["run", "npz:fedavg", f"--data.path={path}", "--data.client_test_fraction=0.2"]
    assert cli.main([*words, "--rounds=1", "--workdir", str(tmp_path / "few")]) == 0
    shown = capsys.readouterr()
    assert (
        "few labels: no validation set, all of them train, and the model of the last" in shown.err
    )
    assert "uses the model of round 1 (the last)" in shown.out
    # whoever asks for validation examples gets them
    asked = [*words, "--data.validation_fraction=0.2", "--rounds=1"]
    assert cli.main([*asked, "--workdir", str(tmp_path / "asked")]) == 0
    assert json.loads((tmp_path / "asked" / "summary.json").read_text())["validation_examples"] > 0
    stopping = [*words, "--early_stopping.patience=2", "--workdir", str(tmp_path / "stopped")]
    with pytest.raises(ConfigError, match="nothing to judge by"):
        cli.run.main(stopping[1:])


@pytest.mark.thorough
def test_labels_of_ones_own_file_are_not_hidden_without_a_word(capsys, tmp_path):
    words = [
        "run",
        "npz:semifl",
        f"--data.path={save(tmp_path)}",
        "--data.client_test_fraction=0.2",
    ]
    assert cli.main([*words, "--rounds=1", "--workdir", str(tmp_path / "all")]) == 0
    shown = capsys.readouterr()
    assert "hides" not in shown.err and re.search(r"2\d server examples", shown.out)
    words[1] = "npz:fedavg,per_client"
    asked = [*words, "--rounds=1", "--supervision.labels=2", "--workdir", str(tmp_path / "two")]
    assert cli.main(asked) == 0
    assert "hides" in (error := capsys.readouterr().err) and "so that 6 are seen" in error
