"""A table or figure of a paper as data, and the files that hold them. Nothing here imports jax."""

import dataclasses
import itertools
import re
import runpy
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_ssl.errors import ConfigError, did_you_mean
from fedjax_ssl.own_code import blame

FOLDER = Path(__file__).parent
PAPERS = sorted((FOLDER / "tables").glob("*.toml"))
SCALES = ("smoke", "small", "medium", "paper")
_REDUCED = ("small", "medium")  # scales for a CPU: each adds its settings to those before it
Settings = Mapping[str, Any]  # dotted field -> value, and the words below
_OWN_WORDS = ("config", "metric", "value", "missing", "seeds", "name", "steps", "reduced", "other")
_WORDS = (*_OWN_WORDS, *_REDUCED)
LABELLED_ONLY = "labelled-only baseline"  # a row that learns from the labels alone
_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?)(?:\s*±\s*(\d+(?:\.\d+)?))?")


class Cell(NamedTuple):
    """A number of a table: what is run for it, and what the paper has."""

    row: str
    column: str
    config: str  # its name, and argument
    settings: dict[str, Any]  # dotted fields
    metric: str
    value: str | tuple[str, int]
    paper: str  # "84.1 ± 0.4"; empty where it prints none
    missing: str  # why no config can express it; empty where one does
    steps: str = ""  # why it takes other numbers of local steps than the rest of the table
    other: str = ""  # how it differs from the paper in more than scale: its number is no other's

    @property
    def place(self) -> tuple[str, str]:
        """Row and column."""
        return self.row, self.column


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """A table or figure of a paper: rows x columns of cells.

    Settings are dotted fields of a config, as `fedjax_ssl.config.load` takes them. Those of the
    table come first, then those of the row, the column, the cell and the scale. A row, column or
    cell can also name another `config`, `metric` or `value`, settings of the scales `small` and
    `medium` of its own, and in a sentence what is `missing`, where no config can express it, or why
    its `steps` are not the table's. Cells whose configs are the same share their runs. Where a
    scale makes a title or the name of a row or column wrong, it gives the `name` that is shown
    there.

    Raises:
        ConfigError: parts that do not fit together; names the table.

    Example:
        >>> from experiments.papers import Table
        >>> table = Table(
        ...     name="mine-table1", title="Digits", source="my paper, Table 1", config="digits",
        ...     rows={"FedAvg": {"method.name": "fedavg"}, "XCLP": {"method.name": "xclp"}},
        ...     columns={"5 labels": {"supervision.labels": 5}},
        ...     paper={"XCLP": ("84.1 ± 0.4",)},
        ... )
        >>> [cell.paper for cell in table.make_cells("paper")]
        ['', '84.1 ± 0.4']
    """

    name: str  # PAPER-tableN or PAPER-figureN
    title: str  # one line
    source: str  # paper and number: "arXiv:2204.03304, Table 1"
    config: str  # of every cell: "NAME" or "NAME:ARGUMENT"
    rows: Mapping[str, Settings]
    columns: Mapping[str, Settings]  # the points of the x axis, of a figure
    settings: Settings = dataclasses.field(default_factory=dict)
    cells: Mapping[tuple[str, str], Settings | None] = dataclasses.field(default_factory=dict)
    # ^ None: there is none
    paper: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    # ^ row -> numbers, one per column
    metric: str = "test_accuracy"
    # ^ column of metrics.csv or results.csv; "test_error" is one minus the accuracy
    percent: bool = True  # numbers are shares, shown times 100
    value: str | tuple[str, int] = (
        "last"  # "last", "selected" by validation accuracy, ("mean", last n rows), ("round", n)
    )
    seeds: int = 1  # repetitions in the paper
    small: Settings = dataclasses.field(default_factory=dict)
    # ^ settings of the scale; "seeds": repetitions there
    small_cells: Mapping[str, Sequence[str]] | None = None
    # ^ "rows", "columns": those run at the scales small and medium; None: all
    reduced: str = ""  # what `small` makes smaller, in words
    medium: Settings = dataclasses.field(default_factory=dict)
    # ^ settings of the scale medium, which follow those of small; "reduced": what it makes smaller,
    # in words. Empty: the table has no such scale
    differs: Sequence[str] = ()  # what differs from the paper at the scale `paper`
    steps: int | str = ""
    # ^ local steps that a client takes in a round of the scales small and medium, whatever the
    # method; or why there is no such number
    wanted: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    # ^ columns to run as a whole at the scale paper, before others -> their rows
    why: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # ^ scale -> why results are not the paper's

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9_]+-[a-z0-9._-]+", self.name):
            raise self._wrong("its name is not of the form PAPER-tableN")
        if not self.rows or not self.columns:
            raise self._wrong("it has no rows or no columns")
        cells = set(itertools.product(self.rows, self.columns))
        small = self.small_cells or {}
        named = {*self.cells, *itertools.product(self.paper, self.columns)}
        named |= set(
            itertools.product(small.get("rows", self.rows), small.get("columns", self.columns))
        )
        named |= {(row, column) for column, rows in self.wanted.items() for row in rows}
        if unknown := sorted(named - cells):
            raise self._wrong(f"there is no cell {unknown[0]}")
        for row, numbers in self.paper.items():
            if isinstance(numbers, str) or len(numbers) != len(self.columns):
                raise self._wrong(f"{row!r} needs one number, or an empty text, per column")
            if bad := [text for text in numbers if text and number_of(text) is None]:
                raise self._wrong(
                    f"the number {bad[0]!r} of {row!r} is not of the form '84.1 ± 0.4'"
                )
        for scale, kind in itertools.product(_REDUCED, ("rows", "columns")):
            names = getattr(self, kind)
            if len({self.name_at(scale, kind, name) for name in names}) < len(names):
                raise self._wrong(f"two {kind} have one name at the scale {scale}")
        if self.medium and not self.reduced_at("medium"):
            raise self._wrong("its scale medium does not say what is 'reduced'")
        if unknown_scales := sorted(set(self.why) - set(SCALES)):
            raise self._wrong(
                f"why names the scale {unknown_scales[0]!r}; there are {', '.join(SCALES)}"
            )

    def _wrong(self, text: str) -> ConfigError:
        return ConfigError(f"table {self.name!r}: {text}")

    @property
    def scales(self) -> Sequence[str]:
        """The scales that the table has."""
        return [scale for scale in SCALES if scale != "medium" or self.medium]

    def name_at(self, scale: str, kind: str, name: str) -> str:
        """Name a row or column, of the kind "rows" or "columns", as it is shown at a scale."""
        own = getattr(self, kind)[name]
        return _last([own.get(one, {}) for one in _reductions(scale)], "name", name)

    def title_at(self, scale: str) -> str:
        """Give the title at a scale."""
        return _last([getattr(self, one) for one in _reductions(scale)], "name", self.title)

    def reduced_at(self, scale: str) -> str:
        """Say what a scale makes smaller; empty where it is nothing."""
        own = {"small": self.reduced, "medium": self.medium.get("reduced", "")}
        return own.get(scale, "")

    def seeds_at(self, scale: str) -> int:
        """Give the number of repetitions at a scale."""
        usual = {"smoke": 1, "paper": self.seeds}.get(scale, 2)
        return _last([getattr(self, one) for one in _reductions(scale)], "seeds", usual)

    def make_cells(
        self, scale: str, rows: Sequence[str] | None = None, columns: Sequence[str] | None = None
    ) -> list[Cell]:
        """Make the cells of a scale, row by row.

        Args:
            scale: one of `SCALES`; settings of `smoke` are those of `paper`, which `scales.py`
                makes small.
            rows: those to make, by their names or those at the scale; by default those of the
                scale.
            columns: the same.

        Raises:
            ConfigError: there is no such row or column, no cell of them, or no such scale.
        """
        if scale not in self.scales:
            raise ConfigError(f"{self.name} has no scale {scale}; it has {', '.join(self.scales)}")
        chosen = {}
        for kind, asked in (("rows", rows), ("columns", columns)):
            known = getattr(self, kind)
            here = {self.name_at(scale, kind, name): name for name in known}
            usual = (self.small_cells or {}).get(kind) if _reductions(scale) else None
            wanted = asked or usual or known
            chosen[kind] = dict.fromkeys(
                one if one in known else here.get(one, one) for one in wanted
            )
            if unknown := [one for one in chosen[kind] if one not in known]:
                meant = did_you_mean(unknown[0], [*known, *here])
                raise ConfigError(
                    f"{self.name} has no {kind.removesuffix('s')} {unknown[0]!r}.{meant} It has: "
                    f"{'; '.join(here)}"
                )
        places = list(itertools.product(chosen["rows"], chosen["columns"]))
        found = [
            self._cell(*place, scale) for place in places if self.cells.get(place, {}) is not None
        ]
        if not found:
            raise ConfigError(f"the paper has no cell {', '.join(places[0])} in {self.name}")
        return found

    def _cell(self, row: str, column: str, scale: str) -> Cell:
        own = self.cells.get((row, column)) or {}
        usual = [self.settings, self.rows[row], self.columns[column], own]
        parts = list(usual)
        for one in _reductions(scale):
            parts += [getattr(self, one), *(part.get(one, {}) for part in usual)]
        own_words = {name: getattr(self, name) for name in ("config", "metric", "value")}
        merged: dict[str, Any] = {**own_words, "missing": ""}
        for part in parts:
            merged |= part
        settings = {field: value for field, value in merged.items() if field not in _WORDS}
        words = {field: value for field, value in merged.items() if field in Cell._fields}
        printed = self.printed(row, column)
        return Cell(row, column, settings=settings, paper=printed, **words)

    def printed(self, row: str, column: str) -> str:
        """Give the number that the paper prints in a cell; empty where it prints none."""
        numbers = self.paper.get(row)
        return numbers[list(self.columns).index(column)] if numbers else ""


def without_unlabelled(row: str) -> str:
    """Name the control of a method: the row that has everything but its loss on unlabelled data."""
    return f"{row} without its unlabelled loss"


def _reductions(scale: str) -> Sequence[str]:
    """Name the scales whose settings a scale has, one after another."""
    return _REDUCED[: _REDUCED.index(scale) + 1] if scale in _REDUCED else ()


def _last(parts: Sequence[Settings], word: str, usual: Any) -> Any:
    """Give what the last part that has a word says."""
    return next((part[word] for part in reversed(parts) if word in part), usual)


def number_of(text: str) -> tuple[float, float | None] | None:
    """Read mean and spread of a printed number; None if it is none.

    Example:
        >>> from experiments.papers.table import number_of
        >>> number_of("84.1 ± 0.4"), number_of("3"), number_of("")
        ((84.1, 0.4), (3.0, None), None)
    """
    found = _NUMBER.fullmatch(text.strip())
    if found is None:
        return None
    return float(found[1]), None if found[2] is None else float(found[2])


def load_tables(paths: Sequence[Path] | None = None) -> dict[str, Table]:
    """Read all tables by name, in the order of the papers' files.

    Args:
        paths: papers, as `read_paper` takes them; by default all of `tables/`.

    Raises:
        ConfigError: a file cannot be read or has no tables, or two tables have one name.
    """
    found: dict[str, Table] = {}
    for path in paths or PAPERS:
        for table in _tables_of(path):
            if table.name in found:
                raise ConfigError(f"{path}: there are two tables {table.name!r}")
            found[table.name] = table
    return found


def read_paper(path: Path) -> dict[str, Any]:
    """Read a paper's TOML: its `name`, `tables`, what is `usual` for them, and `claims`.

    Raises:
        ConfigError: it cannot be read, or has no tables.
    """
    try:
        words = tomllib.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not words.get("tables"):
        raise ConfigError(f"{path} has no tables; write some as in {FOLDER}/tables/fedul.toml")
    return words


def _tables_of(path: Path) -> Iterator[Table]:
    """Put a paper's words and numbers together with the settings of the Python file beside it."""
    words = read_paper(path)
    code = path.with_suffix(".py")
    settings: Mapping[str, Any] = {}
    if code.is_file():
        try:
            settings = runpy.run_path(str(code))["TABLES"]
        except Exception as error:
            raise ConfigError(f"{code} cannot be read: {blame(error) or error}") from error
    for about in words["tables"]:
        parts = {**words.get("usual", {}), **about}
        for field, own in settings.get(about.get("name"), {}).items():
            parts[field] = {**own, **parts.get(field, {})}
        if isinstance(parts.get("value"), list):
            parts["value"] = tuple(parts["value"])
        try:
            yield Table(**parts)
        except (ConfigError, TypeError) as error:
            raise ConfigError(f"{path}: {error}") from error


def find_table(name: str, tables: Mapping[str, Table]) -> Table:
    """Find a table by name.

    Raises:
        ConfigError: there is none; names the nearest.
    """
    if name not in tables:
        raise ConfigError(
            f"there is no table {name!r}.{did_you_mean(name, tables)} `fedjax-ssl reproduce "
            "--list` names all"
        )
    return tables[name]
