"""Folders that `save_to_disk` of Hugging Face's `datasets` writes.

Of one split: Arrow files that `state.json` names, beside `dataset_info.json` with the features. Of several splits each
is such a folder, and `dataset_dict.json` above them names the splits.
"""

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_ssl.data.sources.problems import BadData, Findings
from fedjax_ssl.registry import did_you_mean

SPLITS_FILE, STATE_FILE, INFO_FILE = "dataset_dict.json", "state.json", "dataset_info.json"


class Part(NamedTuple):
    """One split."""

    table: Any  # of pyarrow
    features: Mapping[str, Any]  # as `dataset_info.json` describes them


def is_saved_dataset(folder: Path) -> bool:
    """Whether `save_to_disk` has written this folder."""
    return (folder / SPLITS_FILE).is_file() or all((folder / name).is_file() for name in (STATE_FILE, INFO_FILE))


def read_parts(folder: Path, wanted: Mapping[str, str | None], findings: Findings) -> dict[str, Part]:
    """The splits to be used.

    Args:
        folder: of one split or of several.
        wanted: names of the splits "train", "unlabelled" and "test", None where there is none; "test" is then the split
            of that name, if there is one.
        findings: for splits that are not there; stop there before the result is used.

    Returns:
        The splits by name, in the order training, unlabelled, test.

    Raises:
        BadData: a file of the folder is missing, damaged or leads elsewhere, or pyarrow is.
    """
    if not (folder / SPLITS_FILE).is_file():
        named = [name for role in ("test", "unlabelled") if (name := wanted[role]) is not None]
        if named:
            findings.problems.append(
                f"it has one split and no {named[0]!r}; save the splits together, as a DatasetDict"
            )
            return {}
        return {wanted["train"] or "train": _part(folder)}
    there: Any = _json(folder / SPLITS_FILE).get("splits")
    if not isinstance(there, list) or not all(isinstance(name, str) and Path(name).name == name for name in there):
        raise BadData(folder / SPLITS_FILE, ["names no splits; save the dataset again"])
    test = wanted["test"] or ("test" if "test" in there else None)
    chosen = [name for name in (wanted["train"], wanted["unlabelled"], test) if name is not None]
    for name in chosen:
        if name not in there:
            findings.problems.append(f"it has no split {name!r}.{did_you_mean(name, there)} Splits: {', '.join(there)}")
    if len(set(chosen)) < len(chosen):
        findings.problems.append(f"{', '.join(chosen)} are two of one split; give each a split of its own")
    return {} if findings.problems else {name: _part(folder / name) for name in chosen}


def _part(folder: Path) -> Part:
    """The Arrow files of a split, memory-mapped."""
    try:
        arrow: Any = importlib.import_module("pyarrow")
    except ImportError as error:
        raise BadData(folder, ["Arrow files need pyarrow: pip install 'fedjax_ssl[table]'"]) from error
    state, info = _json(folder / STATE_FILE), _json(folder / INFO_FILE)
    listed, features = state.get("_data_files"), info.get("features")
    files: list[Any] = (
        [one.get("filename") for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    )
    if not files or not all(isinstance(name, str) and Path(name).name == name for name in files):
        raise BadData(folder / STATE_FILE, ["names no Arrow files of this folder; save the dataset again"])
    if not isinstance(features, dict) or not all(isinstance(one, dict) for one in features.values()):
        raise BadData(folder / INFO_FILE, ["describes no features; save the dataset again"])
    if state.get("_indices_files") or state.get("_indices_data_files"):
        raise BadData(folder, ["is a selection that an old version of datasets saved; save flatten_indices() of it"])
    tables = []
    for name in files:
        try:
            # Not closed: the tables are the file.
            tables.append(arrow.ipc.open_stream(arrow.memory_map(str(folder / name))).read_all())
        except (OSError, ValueError) as error:  # pyarrow's own errors are among them
            raise BadData(folder / name, [f"is missing, cut short or no Arrow file: {error}"]) from error
    try:
        table = arrow.concat_tables(tables)
    except ValueError as error:
        raise BadData(folder, [f"has Arrow files that do not fit together: {error}"]) from error
    if not table.num_rows:
        raise BadData(folder, ["has no rows"])
    known = {name: described for name, described in features.items() if name in table.column_names}
    return Part(table, known)


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadData(path, [f"is missing or damaged: {error}"]) from error
    if not isinstance(content, dict):
        raise BadData(path, ["is not what save_to_disk writes"])
    return content
