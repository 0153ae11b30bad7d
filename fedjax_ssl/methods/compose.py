"""Compositions: terms added up in one local step, by the names in a config.

`config.method.parts` names them, and each has a weight and its settings in a section with its name,
such as `config.method.fixmatch.threshold`. A term is the loss of a method without its batches. All
terms share the streams "labelled" and "unlabelled", the views and one forward pass.
"""

from collections.abc import Mapping
from typing import Any

from flax.traverse_util import unflatten_dict

from fedjax_ssl.checks import is_zero, required
from fedjax_ssl.federated import Recipe, Setup, Term
from fedjax_ssl.methods import OF_PARTS, TERMS, check_is_term, short
from fedjax_ssl.methods.parts.composition import Part, composition
from fedjax_ssl.methods.parts.setting_types import Count


@required
def compose(
    setup: Setup,
    parts: tuple[str, ...] = (),
    unlabelled_ratio: Count = 1,
    **sections: Any,
) -> Recipe:
    """Terms added up in one local step, each with a weight and settings of its own.

    The same labels must not count twice: two terms with a loss on the same labels are refused.

    Args:
        setup: the run.
        parts: terms, `fedjax-ssl list terms`, or "module:function" of a function that returns a
            `Term`.
        unlabelled_ratio: unlabelled examples per labelled one in a local step, if a term uses them.
        **sections: settings by the name of a part, or each as "PART.SETTING". `weight` is the
            factor of its loss; `after` the number of rounds before it joins the others; `rise` the
            number of rounds in which its weight then rises to its full value.

    Raises:
        ValueError: there are no parts, two with one name, one with weight 0, settings of a missing
            part, a method that is no term, or terms that do not fit together.

    Example:
        >>> def both(setup: fs.Setup) -> fs.Recipe:
        ...     "FedUL, and FixMatch on what has no class label."
        ...     return fs.compose(setup, ("fedul", "fixmatch"), fixmatch={"threshold": 0.8})
        >>> _ = fs.register("method", "both", both)
        >>> fs.load_config("digits", {"method.name": "both"}).method.name
        'both'
    """
    names = [short(part) for part in parts]
    sections = unflatten_dict(sections, sep=".")
    if not names:
        raise ValueError(
            "parts is empty; name terms of `fedjax-ssl list terms`, for example "
            "--method.parts=supervised,fixmatch"
        )
    if len({*names}) < len(names):
        raise ValueError(f"parts are called {', '.join(names)}; two of one name share settings")
    if unknown := sorted(sections.keys() - {*names}):
        raise ValueError(
            f"there are settings of {', '.join(unknown)}, which is not among the parts: "
            f"{', '.join(names)}"
        )
    made = [part_of(part, setup, sections.get(short(part), {})) for part in parts]
    return composition(setup, made, unlabelled_ratio)


def part_of(part: str, setup: Setup, settings: Mapping[str, Any]) -> Part:
    """Build a part, its loss times its weight.

    Raises:
        ValueError: the part is unknown or no term, or a setting has a wrong value.
    """
    check_is_term(part)
    name = short(part)
    own = TERMS.options(part)
    common = {option: one.default for option, one in OF_PARTS.items()}
    for option in common.keys() & settings.keys() - own.keys():
        allowed = OF_PARTS[option].allowed
        assert allowed is not None
        allowed.check(f"{name}.{option}", settings[option])
        common[option] = settings[option]
    weight = common["weight"]
    if is_zero(weight):
        raise ValueError(f"the weight of {name!r} is 0; leave it out of parts")
    given = {
        option: value
        for option, value in settings.items()
        if option in own or option not in OF_PARTS
    }
    try:
        made = TERMS.build(part, setup, **given)
    except ValueError as error:
        raise ValueError(f"the part {name!r}: {error}") from error
    if isinstance(made, Term):
        made = Part(made)
    if not isinstance(made, Part):
        raise ValueError(
            f"the part {part!r} is a {type(made).__name__}, with batches or stages of its own; a "
            "part is a function that returns a fedjax_ssl.Term"
        )
    if not (isinstance(weight, float) and weight == 1.0):
        made = made._replace(term=made.term._replace(weight=weight * made.term.weight))
    return made._replace(name=name, after=common["after"], rise=common["rise"])
