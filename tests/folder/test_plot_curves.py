import math

import matplotlib.figure
import matplotlib.image
import pytest

from fedjax_ssl.folder.plot_curves import plot_curves

ROWS = [
    {
        "round": 5 * step,
        "test_accuracy": 1.0 - 0.8 * 0.9**step,
        "test_balanced_accuracy": 0.9 - 0.8 * 0.9**step,
        "test_loss": 2.3 * 0.9**step,
        "train_loss": math.nan if step == 7 else 2.0 * 0.85**step,
        "pseudo_label_accuracy": 0.97,
        "pseudo_label_coverage": None if step < 3 else 1.0 - 0.5**step,
        "bytes_up": 1_200_000,
        "bytes_down": 2_400_000,
        "seconds": 1.0,
    }
    for step in range(1, 21)
]


@pytest.fixture
def panels(monkeypatch):
    """The finite values of every curve, by the titles of the panels and the labels."""
    figures = []
    init = matplotlib.figure.Figure.__init__

    def remember(self, *arguments, **options):
        figures.append(self)
        init(self, *arguments, **options)

    monkeypatch.setattr(matplotlib.figure.Figure, "__init__", remember)

    def read():
        return {
            axes.get_title(loc="left"): {
                line.get_label(): list(
                    filter(
                        math.isfinite,
                        line.get_xdata() if line.get_linestyle() == ":" else line.get_ydata(),
                    )
                )
                for line in axes.get_lines()
            }
            for axes in figures[-1].axes
        }

    return read


def test_every_kind_of_curve_gets_its_panel(tmp_path, panels):
    plot_curves(ROWS, tmp_path / "curves.png", title="xclp on digits")
    drawn = panels()
    assert {
        title: {label: len(points) for label, points in curves.items()}
        for title, curves in drawn.items()
    } == {
        "Accuracy": {"test accuracy": 20, "test balanced accuracy": 20},
        "Loss": {"test loss": 20, "train loss": 19},
        "Pseudo-labels": {"accuracy": 20, "coverage": 18},
        "Sent so far, all clients": {"clients to server": 20, "server to clients": 20},
    }
    assert drawn["Pseudo-labels"]["accuracy"][-1] == 97.0  # percent
    assert drawn["Sent so far, all clients"]["clients to server"] == [
        1_200_000 * row for row in range(1, 21)
    ]
    image = matplotlib.image.imread(tmp_path / "curves.png")
    assert image.shape[0] > 600 and image.shape[1] > 1000
    assert [file.name for file in tmp_path.iterdir()] == ["curves.png"]


def test_curves_that_meet_are_all_seen_and_stages_are_marked(tmp_path, panels):
    rows = [
        {"round": number, "a_accuracy": 0.5, "b_accuracy": 0.5, "validation_accuracy": 0.4}
        for number in (1, 2, 3)
    ]
    plot_curves(rows, tmp_path / "curves.png", stages=(2,), validation=5)
    assert panels() == {
        "Accuracy": {
            "a accuracy = b accuracy": [50.0] * 3,
            "validation accuracy (5 examples)": [40.0] * 3,
            "next stage": [2, 2],
        }
    }


def test_one_row_and_one_column_are_enough(tmp_path, panels):
    plot_curves([{"round": 1, "test_accuracy": 0.5}], tmp_path / "curves.png")
    assert panels() == {"Accuracy": {"test accuracy": [50.0]}}


@pytest.mark.parametrize(
    "rows", [[], [{"round": 1}], [{"round": 1, "test_accuracy": math.nan, "test_loss": None}]]
)
def test_nothing_to_draw_is_an_error_and_no_file(tmp_path, rows):
    with pytest.raises(ValueError, match=f"{len(rows)} metric rows"):
        plot_curves(rows, tmp_path / "curves.png")
    assert list(tmp_path.iterdir()) == []
