"""Change the choice in a section of a config, such as the method, and carry settings over."""

from collections.abc import Collection

import ml_collections
from flax.traverse_util import flatten_dict

from fedjax_ssl.config.describe import as_text
from fedjax_ssl.config.fields import CHOICES, FIELDS, NAMED, REGISTRIES, get, method_section
from fedjax_ssl.errors import note


def choose(
    config: ml_collections.ConfigDict,
    section: str,
    name: str,
    *,
    before: str | None = None,
    given: Collection[str] = (),
) -> None:
    """Give a section another name. Values that the config sets are carried to the new choice, with
    a note; defaults of the old choice are not.

    Args:
        config: unlocked; it is changed.
        section: for example "method".
        name: the new choice.
        before: the choice whose settings the section has; by default the section's own.
        given: dotted fields that are set together with the new name, and need no note.

    Raises:
        ValueError: the new choice or the old one is unknown.
    """
    values = config[section]
    there = flatten_dict(values.to_dict(), sep=".")
    old = REGISTRIES[section].options_in({**there, "name": before or values.name})
    new = REGISTRIES[section].options_in({"name": name})
    kept = {field: there[field] for field in old if field in there}
    if section in CHOICES:
        kept = {field: value for field, value in kept.items() if value is not None}
    # If defaults are written into the config, only values that differ from them were set.
    if NAMED[section].filled_in:
        kept = {field: value for field, value in kept.items() if value != old[field].default}
    if section in CHOICES:
        values.name = name
        values.update({field: kept.get(field) for field in old})
    else:
        config[section] = values = method_section(name, kept)
    # Only values that the new choice would not have by default need a note.
    own = {field: new[field].default for field in kept if field in new}
    for field, option in FIELDS.items():
        of, _, last = field.rpartition(".")
        if option.fitted and of == section:
            own[last] = option.default
    said = [
        f"{field}={as_text(get(values, field))}"
        for field, default in own.items()
        if get(values, field) != default and f"{section}.{field}" not in given
    ]
    if said:
        note(
            f"{section}.name={name}: carried from the config: {', '.join(said)}; its own defaults "
            "for the rest"
        )
