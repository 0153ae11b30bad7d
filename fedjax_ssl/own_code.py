"""A user's own code: imported by name or from a file, and named in errors that it raises."""

import difflib
import hashlib
import importlib
import inspect
import linecache
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from fedjax_ssl.errors import UserError, did_you_mean

_PACKAGE = str(Path(__file__).resolve().parent)
# Folders of installed code; code outside of them that this package calls is the user's.
_PYTHON = tuple({sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib")})
_INSTALLED = {"site-packages", "dist-packages"}
_READ: dict[str, tuple[Any, str]] = {}  # by file: its import, and the text at that time


def make_importable(folder: Path) -> None:
    """Make the modules of a folder importable; modules that are already importable have
    priority.
    """
    name = str(folder.resolve())
    if name not in sys.path:
        sys.path.append(name)


def check_arguments(
    says: str, function: Callable[..., Any], arguments: Sequence[str], takes: str = ""
) -> None:
    """Refuse a user's own function that cannot be called with these arguments.

    Args:
        says: its role, for the message.
        function: any function.
        arguments: positional arguments of the call.
        takes: the arguments in words; by default their names.

    Raises:
        UserError: it takes other arguments; the message has these, and its place.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:  # a builtin without a signature
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        listed = ", ".join(arguments)
        raise UserError(
            f"{says} cannot be called with {listed} ({error}); write it as a function of "
            f"{takes or f'({listed})'} ({where(function)})"
        ) from error


def import_named(kind: str, name: str) -> Any:
    """Import the object named by "module:attribute".

    Args:
        kind: kind of thing, for messages.
        name: as in a config.

    Raises:
        ValueError: there is no such module or attribute (the message has the searched places and
            near names), or it cannot be called. An error in the module's own code is raised
            unchanged.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute or module.startswith("."):
        raise ValueError(f"{kind} {name!r} is no name; give module:function")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # an import inside the module failed
        raise ValueError(
            f"{kind} {name!r} is not there: no module named {error.name!r}. A module is looked "
            "for in the folder of the config file, in the folder where the command is started, "
            "and where Python finds others (PYTHONPATH)"
        ) from error
    try:
        named = getattr(found, attribute)
    except AttributeError as error:
        near = difflib.get_close_matches(
            attribute, [one for one in vars(found) if not one.startswith("_")], n=1
        )
        hint = f" Did you mean '{module}:{near[0]}'?" if near else ""
        place = getattr(found, "__file__", None) or "a module without a file"
        raise ValueError(
            f"{kind} {name!r} is not there: {place} has no {attribute!r}.{hint}"
        ) from error
    if not callable(named) and not hasattr(named, "apply"):
        raise ValueError(f"{kind} {name!r} is {type(named).__name__}, no function that builds one")
    return named


def blame(error: BaseException) -> str | None:
    """Return one message about an error that a user's own code raised; None if no such code was
    running.

    Returns:
        For example "TypeError: add got incompatible shapes (my_methods.py, line 12, in loss: `a +
        b`)".
    """
    where = place(error)
    if where is None:
        return None
    text = error.msg if isinstance(error, SyntaxError) else said(error)
    return f"{type(error).__name__}: {text or 'no message'} ({where})"


def said(error: BaseException) -> str:
    """Return an error's message in one line; for an unknown name of ml_collections, the nearest
    name in place of all.
    """
    while error.args and isinstance(error.args[0], Exception):
        error = error.args[0]
    theirs = isinstance(error, KeyError) and re.match(r"Key \"|'\w+'\n", str(error.args[0]))
    text = " ".join(str(error.args[0] if theirs else error).strip().split("\n\n")[0].split())
    if unknown := re.match(r'Key "(.*?)" does not exist and cannot be added', text):
        others = re.findall(r"'(\w+)': ", text)
        from fedjax_ssl.gone import words_of  # imported here, because a recipe does not need it

        told = f"there is no field {unknown[1]!r}.{did_you_mean(unknown[1], others)}"
        return told + words_of(unknown[1])
    return text


def place(error: BaseException) -> str | None:
    """Find the place where a user's own code raised an error, from its traceback; None: nowhere."""
    if isinstance(error, SyntaxError) and error.filename and _is_own(error.filename):
        return f"{_shown(error.filename)}, line {error.lineno}"
    found = None
    called = False
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        called = called or file.startswith(_PACKAGE)
        if called and _is_own(file):  # not code that called this package
            found = (file, line, frame.f_code.co_name)
    if found is None:
        return None
    file, line, function = found
    code = linecache.getline(file, line).strip()
    inside = "" if function == "<module>" else f", in {function}"
    return f"{_shown(file)}, line {line}{inside}" + (f": `{code}`" if code else "")


def where(function: Any) -> str:
    """Return file and line of a function or class, or of the class of an object."""
    try:
        return f"{_shown(inspect.getfile(function))}, line {inspect.getsourcelines(function)[1]}"
    except (OSError, TypeError):
        return f"{function!r}"


def check_returned(what: str, function: Any, made: Any, shape: tuple[int, ...], kind: type) -> None:
    """Raise ValueError if a user's own function did not return an array of this shape and kind of
    numbers.
    """
    import numpy as np  # imported here, because `fedjax-ssl --help` does not need it

    found = getattr(made, "shape", None)
    dtype = getattr(made, "dtype", None)
    if found != shape or dtype is None or not np.issubdtype(dtype, kind):
        given = type(made).__name__ if found is None else f"{dtype} {list(found)}"
        raise ValueError(
            f"{what}: {given} came, {kind.__name__} {list(shape)} has to ({where(function)})"
        )


def number_from(what: str, function: Any, *arguments: Any) -> float:
    """Call a user's own function; raise ValueError if it fails or returns anything but one
    number.
    """
    import numpy as np

    try:
        value = np.asarray(function(*arguments))
    except Exception as error:
        raise ValueError(
            f"{what} raised {blame(error) or f'{type(error).__name__}: {said(error)}'}"
        ) from error
    if value.shape or value.dtype.kind not in "biuf":
        came = f"{value.dtype} {list(value.shape)}" if value.shape else value.dtype
        raise ValueError(f"{what} has to return one number, and {came} came ({where(function)})")
    return float(value)


def sources(names: Iterable[str]) -> dict[str, tuple[Path, str]]:
    """Return the user's own modules behind these objects, as {module -> (file, text)}: imported
    modules that lie in the folders where the objects are defined, or below.

    Args:
        names: "module:attribute", imported. Installed packages are left out.
    """
    files = {name: getattr(module, "__file__", None) for name, module in [*sys.modules.items()]}
    own = {name: Path(file) for name, file in files.items() if file and _is_own(file)}
    asked = {own[module].parent for one in names if (module := one.partition(":")[0]) in own}
    return {
        name: (path, _text(name, path))
        for name, path in own.items()
        if path.suffix == ".py" and not asked.isdisjoint(path.parents)
    }


def digests(names: Iterable[str]) -> dict[str, str]:
    """Return a digest of each of these modules."""
    return {
        name: hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        for name, (_, text) in sources(names).items()
    }


def _text(module: str, path: Path) -> str:
    """Read the file of an imported module, once per import, so that a later edit does not count."""
    spec, text = _READ.get(str(path), (None, None))
    if text is None or spec is not sys.modules[module].__spec__:
        text = path.read_text(encoding="utf-8")
        _READ[str(path)] = sys.modules[module].__spec__, text
    return text


def _is_own(file: str) -> bool:
    return not file.startswith(("<", _PACKAGE, *_PYTHON)) and not _INSTALLED & {*Path(file).parts}


def _shown(file: str) -> str:
    """Return a path relative to the current folder if it is inside."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
