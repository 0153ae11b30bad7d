"""Test images that a trained model is surest of and wrong about, from the runs' own data."""

import base64
import io
from collections.abc import Sequence

import numpy as np
import pandas
from PIL import Image

from fedjax_ssl.folder.stored_run import StoredRun
from fedjax_ssl.report.runs import Group
from fedjax_ssl.report.scores import scored_groups

_SHOWN = 12  # mistakes of a group
_SIDE = 128  # pixels of a picture


def mistakes_of(groups: Sequence[Group], problems: list[str]) -> dict[str, list[dict[str, str]]]:
    """Show mistakes of the first finished run of every group with detailed scores.

    Args:
        groups: the report's.
        problems: a sentence is added for every run whose images cannot be shown.

    Returns:
        By name of the group: "image", a data address, "label", "prediction", "sure" and "client".
    """
    found = {}
    for place in scored_groups(groups):
        run = groups[place].finished[0]
        try:
            found[groups[place].name] = _mistakes(run)
        # whatever keeps data from being read: the other parts of the page are there all the same
        except Exception as error:
            problems.append(f"{run.path}: no mistakes are shown: {error}")
    return {name: some for name, some in found.items() if some}


def _mistakes(run: StoredRun) -> list[dict[str, str]]:
    # not at the top: other reports load no data
    from fedjax_ssl.runs.build import load_resolved
    from fedjax_ssl.runs.model_file import resolved_of

    file = run.path / "test_predictions.csv"
    if not file.exists():
        raise ValueError("there is no test_predictions.csv (--test_predictions=all writes it)")
    table = pandas.read_csv(file, dtype=str, keep_default_na=False)
    wrong = table[(table.label != table.prediction) & (table.label != "")]
    sure = [float(row[f"probability_{row.prediction}"]) for _, row in wrong.iterrows()]
    wrong = wrong.assign(sure=sure).nlargest(_SHOWN, "sure")
    experiment = load_resolved(resolved_of(run.config))
    known_by = (run.summary or {}).get("data")
    if known_by not in (None, experiment.known_by):
        raise ValueError("its data have changed since")
    dataset = experiment.dataset
    splits = dataset.splits()
    return [
        {
            "image": _address(splits[row["split"]].x[int(row["row"])] / dataset.input_max),
            "sure": f"{row.sure:.0%} sure",
            **row[["label", "prediction", "client"]].to_dict(),
        }
        for _, row in wrong.iterrows()
    ]


def _address(image: np.ndarray) -> str:
    """Make a data address of an image [height, width, 1 or 3] of values in [0, 1]."""
    if image.ndim != 3 or image.shape[-1] not in (1, 3):
        raise ValueError(f"inputs of shape {image.shape} are no images")
    levels = np.round(255 * np.clip(image, 0, 1)).astype(np.uint8)
    picture = Image.fromarray(levels[..., 0] if levels.shape[-1] == 1 else levels)
    picture.thumbnail((_SIDE, _SIDE))
    content = io.BytesIO()
    picture.save(content, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()
