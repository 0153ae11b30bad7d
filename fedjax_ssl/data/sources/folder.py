"""`folder`: the user's own images, in folders by site and class, or with a table of labels."""

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedjax_ssl.data.dataset import Dataset
from fedjax_ssl.data.reading.cache import facts_of, kept_for
from fedjax_ssl.data.reading.columns import (
    TEST,
    TRAIN,
    VALIDATION,
    TableOptions,
    proportions_digest,
    read_columns,
)
from fedjax_ssl.data.reading.own import (
    MARKS,
    BadData,
    Findings,
    Place,
    columns_of_few_values,
    given_path,
    is_table,
    read_roles,
    read_table,
    say_one_client,
    some,
)
from fedjax_ssl.data.reading.pictures import (
    Channels,
    Fit,
    Listing,
    Side,
    is_text,
    list_images,
    read_images,
    spelling,
)
from fedjax_ssl.data.reading.register import dataset
from fedjax_ssl.errors import counted

if TYPE_CHECKING:  # takes long to import
    import pandas

UNLABELLED = ("unlabelled", "unlabeled")  # folder names that are no class
FILE = "file"  # usual name of the column with the image's file
PREDICTED = {"input", "label", "name", "probability"}  # columns of a table that `predict` writes
LAYOUT = (
    "images belong into PATH/SITE/CLASS/ or PATH/CLASS/ (with train/ and test/ above CLASS or "
    "SITE, if there are test images), or a table PATH/NAME.csv with the columns file and label "
    "says what each shows"
)

logger = logging.getLogger(__name__)


@dataset(
    "folder",
    "your own images: path= a folder of them by site and class, or with a table of file, label, "
    "client",
    terms="yours",
    kind="own",
)
def load_folder(
    *,
    root: Place = None,
    path: Place = None,
    layout: Literal["auto", "site/class", "class"] = "auto",
    size: Side = None,
    channels: Channels = None,
    fit: Fit = "crop",
    black: float | None = None,
    white: float | None = None,
    file_column: str = FILE,
    options: TableOptions,
) -> Dataset:
    """Read a folder of images, once; the arrays are kept in `<root>/folder/` until a file or an
    option changes.

    Without a table, the names of the folders say site and class, and train/ and test/ above them
    the split; the folder "unlabelled" and images directly in the folder of a site have no label. A
    table has a row per image: `file` below the table's folder, `label` (empty = none), and
    optionally `client`, `split` (train, test), `set` and `coarse`. Images that cannot be used are
    left out and counted.

    Args:
        root: folder of all datasets; default $FEDJAX_SSL_DATA or ~/.cache/fedjax_ssl.
        path: the folder, or the table in it; a table in the folder that has a column `file` is
            found.
        layout: meaning of the folder levels; by default from the depth of the images.
        size: side of the square images in pixels; by default their own if all are equal, otherwise
            64.
        channels: 1 (grey) or 3 (colour); by default 3 if an image is in colour.
        fit: how an image becomes a square: its middle cut out, all of it stretched, or padded with
            black.
        black: value of 16-bit images that becomes black; by default 0.
        white: value that becomes white; by default the maximum of the fewest bits that hold the
            training images.
        file_column: the table's name for `file`.
        options: other columns of the table, classes and class shares.

    Returns:
        Dataset "folder" with inputs uint8 [n, H, W, C]; `extra["notes"]` says what was skipped.

    Raises:
        DatasetUnavailable: the folder is not there.
        BadData: it cannot be trained on; has everything that is wrong.
        ValueError: an option is out of range.
    """
    given = given_path("folder", path, f"a folder of images: {LAYOUT}", "folder")
    folder = given if given.is_dir() else given.parent
    columns = {FILE: file_column, **options.columns()}
    listing = list_images(folder)
    table = find_table(given, file_column)
    if table is None:
        _check_without_table(given, columns, layout)
    levels = (black, white)
    pictures: Any = {"size": size, "channels": channels, "fit": fit, "levels": levels}

    def make() -> Dataset:
        findings = Findings()
        # These names can be neither printed nor stored.
        if foreign := [name for name in listing.images if not is_text(name)]:
            findings.problems.append(
                f"{counted(len(foreign), 'image lies', 'images lie')} under names that are not "
                f"UTF-8, first {os.fsencode(foreign[0]).decode('utf-8', 'backslashreplace')}; "
                "rename these files and folders"
            )
        findings.stop(given)
        if table is None:
            files, texts = _by_folders(listing, layout, findings)
        else:
            rows = read_table(table)
            files, texts = read_by_table(table, rows, listing, columns, findings)
            if "client" not in texts:
                say_one_client(rows, columns.values(), findings)
            if given.is_dir():
                findings.notes.append(
                    f"{table.name} says what the images show, not the names of their folders"
                )
            if unnamed := sorted(set(listing.images).difference(files)):
                findings.notes.append(
                    f"{counted(len(unnamed), 'image is', 'images are')} in no row of {table.name}, "
                    f"first {unnamed[0]}; left out"
                )
        findings.stop(given)
        marks = () if table is None else MARKS  # folder names are always meant
        is_test = read_columns(texts, options.classes, findings, marks).is_test
        findings.stop(given)  # before the images, which take longest
        logger.info("%s: reading %d images; this is done once", given, len(files))
        found = read_images(
            [folder / name for name in files], files, findings, fitted=~is_test, **pictures
        )
        findings.stop(given)
        # A class or a client may have lost all its images.
        named = texts.set_axis([spelling(name) for name in files]).iloc[found.rows]
        numbered = read_columns(named, options.classes, findings, marks)
        notes = list(dict.fromkeys(findings.notes))
        findings.stop(given)
        return numbered.dataset("folder", given, found.x, options.proportions, notes, found.reading)

    read = [folder / name for name in listing.images]
    facts = facts_of([table, *read] if table else read)
    content = [facts, listing.others, proportions_digest(options.proportions), str(table)]
    return kept_for(root, "folder", folder, [layout, file_column, options, pictures], content, make)


def _check_without_table(given: Path, columns: Mapping[str, str], layout: str) -> None:
    """Refuse a folder with unused tables, and named columns without a table.

    Args:
        given: the folder.
        columns: name of the column of each role, and of the file.
        layout: the user's choice; "auto" does not say that folder names count.

    Raises:
        BadData: the message lists the tables.
    """
    tables = [
        path
        for path in _tables(given)
        if path.suffix != ".txt" and not PREDICTED.issubset(read_table(path))
    ]
    named = [f"data.{role}_column={name}" for role, name in columns.items() if name != role]
    if named or (tables and layout == "auto"):
        there = [f"{path.name} ({', '.join(read_table(path))})" for path in tables]
        raise BadData(
            given,
            f"no table in it has a column {columns[FILE]!r} that names the images. Tables: "
            f"{'; '.join(there) or 'none'}. Name the column as data.file_column=, or give "
            "data.layout=site/class (or class) to go by the names of the folders",
        )


def _tables(folder: Path) -> list[Path]:
    paths = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
    return [path for path in paths if is_table(path) and path.is_file()]


def find_table(given: Path, column: str) -> Path | None:
    """Find the single table in a folder of images that has a column for the file.

    Args:
        given: the folder, or the table itself.
        column: name of the column.
    """
    if not given.is_dir():
        return given
    found = []
    for path in _tables(given):
        try:
            if column in read_table(path):
                found.append(path)
        except BadData as error:
            # A broken table is only reported if its name says that it is a table.
            if path.suffix.lower() == ".csv":
                raise BadData(
                    path, [*error.problems, "move it away if it does not describe the images"]
                ) from error
    if len(found) > 1:
        named = ", ".join(path.name for path in found)
        raise BadData(
            given,
            f"has {len(found)} tables with a column {column!r}: {named}; give one of them as path",
        )
    return found[0] if found else None


def _by_folders(
    listing: Listing, layout: str, findings: Findings
) -> tuple[Sequence[str], "pandas.DataFrame"]:
    """Take labels, clients and splits of images from their folder names."""
    files = listing.images
    if listing.others:
        kinds = ", ".join(f"{count:,} {ending}" for ending, count in listing.others.most_common(5))
        findings.notes.append(f"files that are no images by their ending: {kinds}")
    import pandas

    texts = pandas.DataFrame(index=list(files))
    folders = [name.split("/")[:-1] for name in files]
    words = {*TRAIN[1:], *TEST, *VALIDATION}
    for place in (0, 1):
        here = [parts[place] if len(parts) > place else "" for parts in folders]
        lower = {name.lower() for name in here}
        if lower & {*TRAIN[1:]} and lower <= words:
            texts["split"] = here
            folders = [parts[:place] + parts[place + 1 :] for parts in folders]
            if place:
                findings.notes.append(
                    f"the folders {', '.join(sorted(set(here)))} inside the others are taken as "
                    "splits"
                )
            break
        if lower & {*TRAIN[1:]} and lower & {*TEST}:
            others = sorted(name or "." for name in set(here) if name.lower() not in words)
            findings.problems.append(
                "it has folders for training and for testing, and images elsewhere too "
                f"({', '.join(others[:3])}); put unlabelled ones into train/unlabelled/, take "
                "others away, or say in a table which image is in which set"
            )
            break
    depths = list(map(len, folders))
    # Depth of the labelled images.
    most = {"auto": min(max(depths, default=0), 2), "class": 1, "site/class": 2}[layout]
    astray = [
        row for row, depth in enumerate(depths) if depth > most or depth < most - 1 or not most
    ]
    loose = [row for row, depth in enumerate(depths) if depth < most]
    if not files:
        findings.problems.append(f"there is no image in it; {LAYOUT}")
    elif astray:
        findings.problems.append(
            f"{counted(len(astray), 'image lies', 'images lie')} in no folder "
            f"{'SITE/CLASS' if most == 2 else 'CLASS'} ({some(astray, files)}); {LAYOUT}"
        )
    elif loose and most == 1:
        findings.notes.append(
            f"{counted(len(loose), 'image lies', 'images lie')} beside the folders of the classes "
            f"({some(loose, files)}), without a label"
        )
    texts["label"] = [
        "" if len(parts) < most or not parts or parts[-1].lower() in UNLABELLED else parts[-1]
        for parts in folders
    ]
    if most == 2 and not astray:
        texts["client"] = [parts[0] for parts in folders]
    return files, texts


def read_by_table(
    path: Path,
    table: "pandas.DataFrame",
    listing: Listing,
    columns: Mapping[str, str],
    findings: Findings,
) -> tuple[Sequence[str], "pandas.DataFrame"]:
    """Take files and texts from the rows of a table; rows with a missing image are left out and
    counted.
    """
    texts = read_roles(table, columns, ("file",), findings, f"in {path.name} ")
    if "file" not in texts:
        return (), texts
    if "label" not in texts:
        findings.notes.append(
            f"{path.name} has no column {columns['label']!r}: no image has a label"
            f"{columns_of_few_values(table, 'label')}"
        )
    there = {spelling(image): image for image in listing.images}
    texts["file"] = texts["file"].map(lambda cell: there.get(spelling(cell), cell))
    missing = texts[~texts["file"].isin(listing.images)]
    if len(missing):
        named = ", ".join(
            f"{cell or 'nothing'} ({place})" for place, cell in missing["file"].iloc[:3].items()
        )
        text = (
            f"{len(missing):,} of {len(texts):,} rows name no image in {path.parent or '.'}, "
            f"first {named}"
        )
        if len(missing) == len(texts):
            how = "a file is named by its path below the folder of the table, with / and ending"
            findings.problems.append(f"{text}; {how}")
        else:
            findings.notes.append(f"{text}; they are left out")
    texts = texts.drop(missing.index)
    _check_repeats(texts, findings)
    texts = texts.drop_duplicates("file")
    return texts["file"].tolist(), texts.drop(columns="file")


def _check_repeats(texts: "pandas.DataFrame", findings: Findings) -> None:
    """Find several rows about one image: equal rows count once, different ones are a problem."""
    repeats = texts[texts.duplicated("file")]
    for place, row in repeats[~texts.duplicated().reindex(repeats.index)].iterrows():
        first = texts[texts["file"] == row["file"]].iloc[0]
        if differ := [role for role in texts if row[role] != first[role]]:
            said = ", ".join(f"{role} {first[role]!r} and {row[role]!r}" for role in differ)
            findings.problems.append(
                f"{row['file']} has two rows that differ, {first.name} and {place}: {said}; an "
                "image has one of each, so keep one row"
            )
    if len(repeats):
        findings.notes.append(
            f"{counted(len(repeats), 'row repeats', 'rows repeat')} an image, first "
            f"{repeats['file'].iloc[0]} ({repeats.index[0]}); it counts once"
        )
