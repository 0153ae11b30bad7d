"""`tfds:NAME`: datasets of TensorFlow Datasets, read from prepared folders without TensorFlow.

A prepared folder is `<data_dir>/NAME[/CONFIG]/VERSION/` with `dataset_info.json`, `features.json`, `*.labels.txt`, and
the examples in files of TFRecord or array_record. TensorFlow Datasets itself reads the first of these two only with
TensorFlow, and prepares nothing without it.
"""

import importlib
import importlib.util
import io
import json
import os
import re
import socket
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps

from fedjax_ssl.checks import check_whole_numbers
from fedjax_ssl.data.dataset import Dataset, Split
from fedjax_ssl.data.sources.cache import data_root, fingerprint, kept
from fedjax_ssl.data.sources.entries import EMBEDDED
from fedjax_ssl.data.sources.fetch import DatasetUnavailable
from fedjax_ssl.data.sources.formats import FormatError
from fedjax_ssl.data.sources.tfexample import Value, parse_example, read_tfrecord
from fedjax_ssl.registry import did_you_mean

FOLDER_VARIABLE = "TFDS_DATA_DIR"
VERSION = 1  # of what a folder becomes: goes into the cache's name
NEEDED = ("tensorflow", "tensorflow_datasets", "importlib_resources")
# What a feature is, as the files name it; a feature of another kind is read only where a key names it.
KINDS = ("image", "classLabel", "tensor", "text", "scalar")
TIMEOUT = 5.0  # seconds for a host to accept a connection
# Of these, TensorFlow Datasets stores the images with rows and columns exchanged.
TRANSPOSED = ("emnist",)


class _Feature(NamedTuple):
    kind: str  # of `KINDS`, "" for any other
    shape: tuple[int, ...] | None  # None: not the same for all


def load_tfds(
    dataset: str,
    *,
    root: str | Path | None = None,
    path: str | Path | None = None,
    download: bool = True,
    train_split: str = "train",
    test_split: str | None = None,
    unlabelled_split: str | None = None,
    input_key: str | None = None,
    label_key: str | None = None,
    coarse_key: str | None = None,
    client_key: str | None = None,
    size: int | None = None,
) -> Dataset:
    """Reads a prepared dataset of images or of numbers; it is prepared first where TensorFlow is installed.

    Args:
        dataset: NAME, NAME/CONFIG or NAME/CONFIG/VERSION; the newest version by default.
        root: folder of all datasets, which keeps the arrays; default $FEDJAX_SSL_DATA or ~/.cache/fedjax_ssl.
        path: the folder of prepared datasets; default $TFDS_DATA_DIR or ~/tensorflow_datasets.
        download: whether it may be downloaded and prepared.
        train_split: the split that is trained on.
        test_split: the split that is tested on; by default "test", if there is one.
        unlabelled_split: a split whose examples follow the training examples without a label, such as STL-10's.
        input_key: the feature that is the input; by default what the dataset says, or the only image.
        label_key: the feature that is the class; by default what the dataset says, or the only class label.
        coarse_key: a second class label, such as CIFAR-100's `coarse_label`.
        client_key: a feature that says whose example it is.
        size: side of square images, which are cropped in the middle and resized; needed where they differ.

    Returns:
        The dataset, in the order of the files, which is not that of the original ones.

    Raises:
        DatasetUnavailable: it is not prepared and cannot be prepared here, or damaged; says what to do.
        ValueError: an option that it does not have.
    """
    if size is not None:
        check_whole_numbers(size=size)
    folders = prepared_folders(path)
    folder = _version_folder(folders, dataset)
    if folder is None and download:
        _prepare(dataset, folders)
        folder = _version_folder(folders, dataset)
    if folder is None:
        raise DatasetUnavailable(_not_here(dataset, folders))
    facts = _Folder(folder, dataset.partition("/")[0])
    keys = {"input": input_key, "label": label_key, "coarse": coarse_key, "client": client_key}
    options = {"train": train_split, "test": test_split, "unlabelled": unlabelled_split, "size": size, **keys}

    def make() -> Dataset:
        try:
            return _read(facts, options)
        except (FormatError, OSError) as error:
            raise DatasetUnavailable(f"tfds:{dataset}: {folder} is damaged: {error}") from error

    content = [
        VERSION,
        *((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(folder.iterdir())),
    ]
    home = data_root(root) / "tfds" / f"{facts.name}-{fingerprint([str(folder.resolve()), options])}"
    return kept(home, fingerprint(content), make)


def prepared_folders(path: str | Path | None = None) -> Path:
    """The folder of prepared datasets: `path`, else $TFDS_DATA_DIR, else ~/tensorflow_datasets."""
    return Path(path or os.environ.get(FOLDER_VARIABLE) or Path("~") / "tensorflow_datasets").expanduser()


def is_prepared(dataset: str) -> bool:
    """Whether a dataset (NAME or NAME/CONFIG) has been prepared there, whole or not."""
    return any((prepared_folders() / dataset).glob("*/dataset_info.json"))


class _Folder:
    """What the small files of a prepared folder say."""

    def __init__(self, folder: Path, name: str):
        self.folder, self.name = folder, name
        try:
            self.info = json.loads((folder / "dataset_info.json").read_text(encoding="utf-8"))
            features = json.loads((folder / "features.json").read_text(encoding="utf-8"))["featuresDict"]["features"]
            self.features = {key: _feature(value) for key, value in features.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DatasetUnavailable(f"tfds:{name}: {folder} is no prepared folder, or damaged: {error}") from error

    def splits(self) -> list[str]:
        return [split["name"] for split in self.info.get("splits", ())]

    def class_names(self, key: str) -> tuple[str, ...] | None:
        file = self.folder / f"{key}.labels.txt"
        return tuple(file.read_text(encoding="utf-8").splitlines()) if file.is_file() else None

    def key(self, given: str | None, role: str) -> str:
        """The feature of a role: as given, as the dataset says, or the only one of its kind."""
        if given is not None:
            if given not in self.features:
                raise ValueError(
                    f"tfds:{self.name} has no feature {given!r}.{did_you_mean(given, self.features)} Features: "
                    f"{', '.join(self.features)}"
                )
            return given
        supervised = self.info.get("supervisedKeys", {}).get("tuple", {}).get("items", [])
        if len(supervised) == 2 and "featureKey" in supervised[role == "label"]:
            return supervised[role == "label"]["featureKey"]
        kind = {"input": "image", "label": "classLabel"}[role]
        found = [key for key, feature in self.features.items() if feature.kind == kind]
        if len(found) != 1:
            raise ValueError(
                f"tfds:{self.name} has {len(found)} features that could be the {role}; name one with data.{role}_key. "
                f"Features: {', '.join(self.features)}"
            )
        return found[0]

    def examples(self, split: str) -> Iterator[dict[str, Value]]:
        kind = self.info.get("fileFormat") or "tfrecord"
        # NAME-SPLIT.KIND-00000-of-00001; NAME has no "-", so that "extra-train" is not taken for "train".
        pattern = re.compile(rf"[^-]+-{re.escape(split)}\.{re.escape(kind)}-\d+-of-\d+")
        files = sorted(file for file in self.folder.iterdir() if pattern.fullmatch(file.name))
        if not files:
            raise FormatError(f"there is no file *-{split}.{kind}-*")
        number = int(files[0].name.rpartition("-of-")[2])
        if len(files) != number:
            raise FormatError(f"split {split!r} has {len(files)} of its {number} files")
        for file in files:
            for record in read_tfrecord(file) if kind == "tfrecord" else _read_array_record(file, kind):
                yield parse_example(record)


def _feature(described: Mapping[str, Any]) -> _Feature:
    kinds = [key for key in described if key in KINDS]
    kind = kinds[0] if len(kinds) == 1 else ""
    content = described.get(kind)
    shape = content.get("shape", {}).get("dimensions") if isinstance(content, dict) else None
    sizes = tuple(int(size) for size in shape or ())
    return _Feature(kind, None if not sizes or min(sizes) < 1 else sizes)


def _read_array_record(path: Path, kind: str) -> Iterator[bytes]:
    if kind != "array_record":
        raise FormatError(f"files of the format {kind!r} are not read; prepare it as tfrecord or array_record")
    try:
        module = importlib.import_module("array_record.python.array_record_module")
    except ImportError as error:
        raise DatasetUnavailable(
            f"{path} is an array_record file, which needs: pip install 'fedjax_ssl[tfds]'"
        ) from error
    try:
        reader = module.ArrayRecordReader(str(path))
    except (RuntimeError, ValueError) as error:
        raise FormatError(f"{path.name}: {error}") from error
    try:
        yield from reader.read_all()
    finally:
        reader.close()


def _read(facts: _Folder, options: Mapping[str, Any]) -> Dataset:
    keys = {role: facts.key(options[role], role) for role in ("input", "label")}
    for role in ("coarse", "client"):
        if options[role] is not None:
            keys[role] = facts.key(options[role], role)
    there = facts.splits()
    test = options["test"] or ("test" if "test" in there else None)
    wanted = [split for split in (options["train"], options["unlabelled"]) if split is not None]
    for split in (*wanted, test):
        if split is not None and split not in there:
            raise ValueError(
                f"tfds:{facts.name} has no split {split!r}.{did_you_mean(split, there)} Splits: {', '.join(there)}"
            )
    if len({*wanted, test}) <= len(wanted):
        raise ValueError(
            f"tfds:{facts.name}: two of the training, unlabelled and test examples are of one split "
            f"({', '.join([*wanted, *([test] if test else [])])}); give each a split of its own"
        )
    parts = {split: _arrays(facts, split, keys, options["size"]) for split in wanted}
    if test is not None:
        parts[test] = _arrays(facts, test, keys, options["size"])
    if options["unlabelled"] is not None:
        parts[options["unlabelled"]]["label"] = np.full(len(parts[options["unlabelled"]]["input"]), -1)
    clients = sorted({name for part in parts.values() for name in part.get("client", ())})
    number = {name: place for place, name in enumerate(clients)}
    whole = {key: np.concatenate([parts[split][key] for split in wanted]) for key in keys}
    splits = [whole] if test is None else [whole, parts[test]]
    made = [
        Split(
            part["input"],
            part["label"],
            np.array([number[name] for name in part["client"]], np.int32) if "client" in keys else None,
            part["coarse"] if "coarse" in keys else None,
        )
        for part in splits
    ]
    most = max(int(part.y.max(initial=-1)) for part in made)
    return Dataset(
        name=f"tfds:{facts.name}",
        train=made[0],
        test=made[1] if len(made) > 1 else None,
        class_names=facts.class_names(keys["label"]) or tuple(str(label) for label in range(most + 1)),
        client_names=tuple(clients) if "client" in keys else None,
        input_max=255.0 if made[0].x.dtype == np.uint8 else 1.0,
        coarse_names=facts.class_names(keys["coarse"]) if "coarse" in keys else None,
        extra={"terms": facts.info.get("citation", "")},
    )


def _arrays(facts: _Folder, split: str, keys: Mapping[str, str], size: int | None) -> dict[str, Any]:
    """Inputs [n, ...], labels [n], coarse labels [n] and names of clients of one split."""
    rows: dict[str, list] = {role: [] for role in keys}
    feature = facts.features[keys["input"]]
    for number, example in enumerate(facts.examples(split)):
        missing = [key for key in keys.values() if key not in example]
        if missing:
            raise FormatError(f"example {number} of {split} has no {missing[0]!r}")
        value = example[keys["input"]]
        rows["input"].append(_image(value, facts.name, size) if feature.kind == "image" else _numbers(value, feature))
        if rows["input"][-1].shape != rows["input"][0].shape:
            raise ValueError(
                f"tfds:{facts.name} has images of several shapes, {rows['input'][0].shape} and "
                f"{rows['input'][-1].shape}; give data.size"
            )
        for role in ("label", "coarse"):
            if role in keys:
                rows[role].append(_label(example[keys[role]], keys[role]))
        if "client" in keys:
            name = example[keys["client"]][0]
            rows["client"].append(name.decode() if isinstance(name, bytes) else str(name))
    if not rows["input"]:
        raise FormatError(f"split {split} is empty")
    labels = {role: np.array(rows[role]) for role in ("label", "coarse") if role in keys}
    return {**rows, "input": np.stack(rows["input"]), **labels}


def _label(value: Value, key: str) -> int:
    if not isinstance(value, np.ndarray) or value.dtype != np.int64 or len(value) != 1:
        raise FormatError(f"feature {key!r} is no class label")
    return int(value[0])


def _image(value: Value, name: str, size: int | None) -> np.ndarray:
    """uint8 [H, W, C]."""
    if not isinstance(value, list) or len(value) != 1:
        raise FormatError("an image is no encoded image")
    try:
        with Image.open(io.BytesIO(value[0]), formats=["PNG", "JPEG"]) as image:
            shown = image if image.mode in ("L", "RGB") else image.convert("RGB")
            if size is not None:
                shown = ImageOps.fit(shown, (size, size), Image.Resampling.BILINEAR)
            pixels = np.asarray(shown)
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise FormatError(f"an image is damaged: {error}") from error
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    return pixels.transpose(1, 0, 2) if name in TRANSPOSED else pixels


def _numbers(value: Value, feature: _Feature) -> np.ndarray:
    """float32 of the feature's shape."""
    if not isinstance(value, np.ndarray):
        raise FormatError("the input is neither an image nor numbers")
    values = value.astype(np.float32)
    return values.reshape(feature.shape) if feature.shape is not None else values


def _version_folder(folders: Path, dataset: str) -> Path | None:
    """The prepared folder, of the newest version where none is named; of the only configuration likewise."""
    place = folders / dataset
    if (place / "dataset_info.json").is_file():
        return place
    found = [*place.glob("*/dataset_info.json"), *place.glob("*/*/dataset_info.json")]
    configs = {file.parent.parent for file in found}
    if len(configs) > 1:
        names = ", ".join(sorted(f"tfds:{folder.relative_to(folders)}" for folder in configs))
        raise ValueError(f"tfds:{dataset} is prepared in several configurations; name one: {names}")
    return max((file.parent for file in found), key=_version, default=None)


def _version(folder: Path) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else -1 for part in folder.name.split("."))


def _prepare(dataset: str, folders: Path) -> None:
    """Downloads and prepares it with TensorFlow, if that is installed and the hosts answer.

    TensorFlow Datasets tries a host without a name for minutes, and one that is silent without end: so they are asked
    first.
    """
    missing = [module for module in NEEDED if importlib.util.find_spec(module) is None]
    if missing:
        raise DatasetUnavailable(_not_here(dataset, folders, [f"preparing it needs {', '.join(missing)}"]))
    try:
        tfds: Any = importlib.import_module("tensorflow_datasets")
        builder = tfds.builder(dataset, data_dir=str(folders))
        silent = _silent_hosts(builder.url_infos)
        if silent:
            raise DatasetUnavailable(_not_here(dataset, folders, silent))
        builder.download_and_prepare(file_format="array_record")
    except DatasetUnavailable:
        raise
    except Exception as error:  # whatever it raises, a user needs the same message
        reason = f"TensorFlow Datasets: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise DatasetUnavailable(_not_here(dataset, folders, [reason])) from error


def _silent_hosts(addresses: Mapping[str, Any]) -> list[str]:
    """What is wrong with the hosts of some addresses, a line each."""
    reasons = []
    for host, port in sorted({_host(address) for address in addresses}):
        try:
            socket.create_connection((host, port), timeout=TIMEOUT).close()
        except OSError as error:
            reasons.append(f"{host}: {error.strerror or error}")
    return reasons


def _host(address: str) -> tuple[str, int]:
    parts = urllib.parse.urlsplit(address)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _not_here(dataset: str, folders: Path, tried: Sequence[str] = ()) -> str:
    """The whole message: what was tried, where it looked, and what to do."""
    lines = [f"tfds:{dataset} is not prepared here{' and could not be prepared' if tried else ''}."]
    lines += [f"  tried   {reason}" for reason in tried]
    lines.append(f"  looked  {folders / dataset}")
    lines.append("To go on, do one of these:")
    lines.append(
        f"  - prepare it where TensorFlow is installed, `pip install tensorflow tensorflow-datasets "
        f"importlib_resources; tfds build {dataset}`,\n    and copy the folder to {folders / dataset}; reading it "
        "needs no TensorFlow"
    )
    lines.append(f"  - point {FOLDER_VARIABLE} or path= at the folder of prepared datasets")
    lines.append(f"  - run on data that needs no download: {EMBEDDED}")
    return "\n".join(lines)
