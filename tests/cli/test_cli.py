"""The console command: help without jax, lists, data, a new study."""

import contextlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedjax_ssl import cli
from fedjax_ssl.cli import run
from fedjax_ssl.cli.listing import KINDS

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def own_path(monkeypatch):
    """Folders of a test's config files are importable in this test alone."""
    monkeypatch.setattr(sys, "path", [*sys.path])


def call(capsys, *arguments: str) -> tuple[int, str, str]:
    try:
        code = cli.main([*arguments])
    except SystemExit as end:  # of argparse
        code = end.code
    output = capsys.readouterr()
    return code, output.out, output.err


def test_what_needs_no_jax_does_not_import_it():
    asked = [line.split() for line in ("--help", "--version", "list configs", "new --help")]
    code = (
        f"import sys; from fedjax_ssl import cli\nfor arguments in {asked!r}:\n    try: "
        "cli.main(arguments)\n    except SystemExit: pass\nsys.exit(any(name in sys.modules for "
        "name in ('jax', 'numpy', 'flax', 'ml_collections', 'matplotlib')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and done.stdout, done.stderr


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["rn"], ("no command 'rn'. Did you mean 'run'", "sweep")),
        (["data", "info"], ("needs a NAME", "glyphs")),
        (["data", "info", "tfds"], ("is written tfds:NAME, such as tfds:mnist",)),
        (["data", "check"], ("needs a PATH",)),
        (["data", "check", "gone.csv"], ("gone.csv is not there",)),
        (
            ["data", "download", "svhn", "--data.size=3"],
            ("data.size is no option of 'svhn'",),
        ),
        (
            ["data", "check", "tests", "--data.sise=3"],
            ("no field 'data.sise'. Did you mean 'data.size'",),
        ),
        (
            ["data", "check", "tests", "--data.writers=3"],
            ("data.writers is no option of 'folder'", "data.size"),
        ),
        (["new", "my-study"], ("'my-study' cannot be the name of a module of your own",)),
        (["run", "digits_fedavg", "-x"], ("unexpected argument '-x'",)),
        (["run", "digits_fedavg", "--seeds=3"], ("no field 'seeds'", "sweep CONFIG --seeds N")),
        (["sweep", "digits", "--seed", "3"], ("--seeds N makes N runs", "--seed=VALUE")),
    ],
)
def test_a_mistake_gets_one_message_and_exit_code_2(capsys, arguments, messages):
    code, _, error = call(capsys, *arguments)
    assert code == 2 and error.count("error:") == 1 and "Traceback" not in error
    assert all(message in error for message in messages), error


def test_lists_have_a_line_each(capsys):
    for kind in KINDS:
        code, output, _ = call(capsys, "list", kind)
        assert code == 0 and output.startswith(kind) and len(output.splitlines()) > 1
    assert call(capsys, "list", "around") == call(capsys, "list", "wrappers")
    _, output, _ = call(capsys, "list")
    assert all(f"{kind} (" in output for kind in KINDS)
    for name in (
        "fixmatch",
        "wrn28",
        "femnist",
        "dirichlet",
        "per_class",
        "crop_flip",
        "scaffold",
        "rmsprop",
    ):
        assert f"\n  {name} " in output
    assert "digits_xclp" in output and "FedAvg+XCLP on real handwriting" in output
    terms = output[output.index("terms (") : output.index("models (")].splitlines()
    (place,) = [number for number, line in enumerate(terms) if line.startswith("  prototypes ")]
    assert [line.strip() for line in terms[place + 1 : place + 3]] == [
        "needs: class labels at clients",
        "sends: the model, and class prototypes",
    ]


def test_help_of_a_config_is_short_and_that_of_a_section_explains_every_field(capsys):
    asked = ["run", "digits_xclp", "--method.num_neighbors=7", "--help"]
    code, output, _ = call(capsys, *asked)
    assert code == 0 and output.startswith("FedAvg+XCLP on real handwriting.")
    changed = ("--rounds=80", "--method.num_neighbors=7", "--supervision.labels=5")
    assert all(f"\n  {field} " in output for field in changed)
    assert "\n  loss             5  cross_entropy: " in output and "--loss.gamma" not in output
    _, output, _ = call(capsys, *asked, "loss")
    assert "--loss.gamma=2.0" in output and "--rounds" not in output
    code, _, error = call(capsys, "run", "digits_xclp", "--help=los")
    assert code == 2 and "no section 'los'. Did you mean 'loss'?" in error
    _, output, _ = call(capsys, *asked, "all")
    assert all(f"\n  {field} " in output for field in changed)
    assert "evaluations between checkpoints" in output and "a whole number of at least 1" in output
    assert "--partition.alpha" not in output  # of another partition
    assert max(map(len, output.splitlines())) <= 120


def test_no_help_has_80_lines(capsys):
    for name in ("digits_fedmatch", "cifar10_protofssl", "cifar10_fl2", "folder"):
        assert len(run.describe_config(name).splitlines()) < 80, name
    for command in cli.COMMANDS.keys() - {"reproduce", "bench"}:  # which are not in the package
        with contextlib.suppress(SystemExit):
            cli.main([command, "--help"])
        assert len(capsys.readouterr().out.splitlines()) < 80, command


def test_facts_about_a_dataset(capsys, tmp_path):
    _, output, _ = call(capsys, "data", "info", "digits")
    assert (
        "1,797 examples" in output
        and "8 x 8 x 1" in output
        and "0 (178)" in output
        and "writer 0 (130)" in output
    )
    assert "Alpaydin" in output
    assert "fedjax-ssl data check PATH" in call(capsys, "data", "info", "npz")[1]
    code, output, _ = call(capsys, "data", "info", "mnist", "--root", str(tmp_path))
    assert code == 0 and "CC BY-SA" in output and "train-images-idx3-ubyte.gz" in output
    assert "cifar100" in call(capsys, "data", "list")[1]


def test_your_own_data_are_checked_before_a_run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDJAX_SSL_DATA", str(tmp_path / "kept"))
    rows = [
        f"{age},{sort},north" for age, sort in zip(range(20), ["red", "white"] * 10, strict=True)
    ]
    (tmp_path / "wine.csv").write_text("\n".join(["age,sort,client", *rows]))
    code, output, _ = call(capsys, "data", "check", "wine.csv", "--data.label_column=kind")
    assert (
        code == 2
        and "problems:" in output
        and "no column 'kind'," in output
        and "not ready" in output
    )
    code, output, _ = call(capsys, "data", "check", "wine.csv")
    assert code == 2 and "how many these are: sort (2)" in " ".join(output.split())
    code, output, error = call(capsys, "data", "check", "wine.csv", "--data.label_column=sort")
    assert (
        code == 0
        and error == ""
        and "red (10), white (10)" in output
        and "worth a look" not in output
    )
    command = (
        "fedjax-ssl run table --data.path=wine.csv --data.label_column=sort "
        "--data.client_test_fraction=0.2"
    )
    assert command in output


def test_what_is_in_the_package_is_not_downloaded(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDJAX_SSL_DATA", str(tmp_path))
    code, output, _ = call(capsys, "data", "download", "digits")
    assert code == 0 and "1,797 examples" in output


def test_a_new_study_has_a_config_a_method_and_a_test(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, output, _ = call(capsys, "new", "hospital")
    assert code == 0 and "fedjax-ssl run hospital/hospital.py" in output
    assert {file.name for file in (tmp_path / "hospital").iterdir()} == {
        *("hospital.py", "hospital_method.py", "test_hospital.py")
    }
    assert "my_study" not in "".join(file.read_text() for file in (tmp_path / "hospital").iterdir())
    code, output, _ = call(capsys, "run", "hospital/hospital.py", "--help", "method")
    assert "--method.entropy_weight=0.1" in output and "of the entropy; 0 leaves it out" in output
    assert call(capsys, "new", "hospital")[0] == 2


@pytest.mark.thorough
def test_the_test_of_a_new_study_passes(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "fedjax_ssl.cli", "new", "mine"], cwd=tmp_path, check=True
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "mine"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.thorough
def test_a_hospitals_file_partly_labelled_with_one_site_left_out(capsys, tmp_path, monkeypatch):
    generator = np.random.default_rng(0)
    classes = np.arange(240) % 3
    site = np.array(["north", "south", "east", "west"])[np.arange(240) // 3 % 4]
    points = (generator.normal(size=(240, 6)) + 3 * np.eye(3, 6)[classes]).astype(np.float32)
    labels = np.where(generator.random(240) < 0.5, classes, -1)
    labels[site == "west"] = classes[site == "west"]
    np.savez(tmp_path / "scans.npz", inputs=points, labels=labels, client=site)
    monkeypatch.chdir(tmp_path)
    asked = ("run", "npz:xclp", "--data.path=scans.npz", "--rounds=4", "--method.num_bits=64")
    code, _, error = call(capsys, *asked, "--data.left_out_client=west")
    assert code == 0, error
    table = (tmp_path / "runs/npz-xclp/partition.txt").read_text()
    assert all(f" {name} " in table for name in ("north", "south", "east")) and "west" not in table
    assert "test 60" in table
    code, _, error = call(capsys, *asked, "--data.left_out_client=wets", "--workdir=other")
    assert code == 2 and "Did you mean 'west'" in error and not (tmp_path / "other").exists()


def stopped(capsys, *arguments: str) -> str:
    code, _, error = call(capsys, *arguments)
    assert code == 130
    return error.strip()


def test_what_follows_ctrl_c_is_said_as_it_is(capsys, tmp_path, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedjax_ssl.cli.run.run", stop)
    monkeypatch.setattr("fedjax_ssl.report.command.read", stop)
    asked = ("run", "digits_fedavg", f"--workdir={tmp_path}")
    assert (
        stopped(capsys, *asked)
        == "stopped; there is no checkpoint yet: the same command starts from the beginning"
    )
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "round_00000010.ckpt").touch()
    assert (
        stopped(capsys, *asked)
        == "stopped; the same command goes on after round 10, of the last checkpoint"
    )
    assert stopped(capsys, "report", str(tmp_path)) == "stopped"


@pytest.mark.thorough
def test_a_run_whose_reader_stops_early_says_so(tmp_path):
    code = "import sys; from fedjax_ssl import cli; sys.exit(cli.main(sys.argv[1:]))"
    asked = ["run", "digits_fedavg", "--rounds=5", f"--workdir={tmp_path / 'a'}"]
    with subprocess.Popen(
        [sys.executable, "-c", code, *asked],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    ) as one:
        one.stdout.close()
        error = one.stderr.read().decode()
        assert (
            "nobody reads the output any more" in error
            and "Traceback" not in error
            and one.wait() == 1
        )


def test_a_reader_that_stops_early_gets_no_traceback():
    code = "import sys; from fedjax_ssl import cli; sys.exit(cli.main(['list', 'configs']))"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as one:
        one.stdout.close()
        assert one.stderr.read() == b"" and one.wait() == 0
