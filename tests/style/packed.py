"""Names places of the package that hold too much: `python tests/style/packed.py`, from `make lint`.

Refused are several assignments in one statement, a conditional expression inside another one, an
assignment expression outside a condition, files of more than 600 lines (`methods/`: 900),
functions of more than 12 arguments, and docstrings that begin with a relative clause ("What ...",
"Return what ..."). Lines of more than 100 columns are ruff's E501.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "fedjax_ssl"
MOST_ARGUMENTS = 12
RELATIVE = re.compile(
    r"(Return )?(of|what|that|whose|who|which|where|those|with|by)\b", re.IGNORECASE
)


def conditions(tree: ast.AST) -> Iterator[ast.expr]:
    """Find what `if` and `while` ask, also those of a comprehension."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.While):
            yield node.test
        elif isinstance(node, ast.comprehension):
            yield from node.ifs


def packed(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Find packed places: line, and what is wrong."""
    asked = {inner for test in conditions(tree) for inner in ast.walk(test)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and RELATIVE.match(
            ast.get_docstring(node) or ""
        ):
            yield node.lineno, f"the docstring of {node.name} begins with a relative clause"
        match node:
            case ast.Assign(value=ast.Tuple(elts=[_, _, *_])) if any(
                isinstance(target, ast.Tuple) for target in node.targets
            ):
                yield node.lineno, "several assignments in one statement"
            case ast.IfExp() if any(
                isinstance(part, ast.IfExp) for part in (node.test, node.body, node.orelse)
            ):
                yield node.lineno, "a conditional expression inside another one"
            case ast.NamedExpr() if node not in asked:
                yield node.lineno, "an assignment expression outside a condition"
            case ast.FunctionDef(args=given):
                count = len([*given.posonlyargs, *given.args, *given.kwonlyargs])
                if count > MOST_ARGUMENTS:
                    yield node.lineno, f"{node.name} has {count} arguments"


def main() -> int:
    """Print every place; returns 1 where there is one."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        lines = len(source.splitlines())
        if lines > (900 if path.parent.name == "methods" else 600):
            found.append(f"{path}:1: {lines} lines")
        found += [f"{path}:{line}: {what}" for line, what in packed(ast.parse(source))]
    print(*found, sep="\n", end="\n" * bool(found))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
