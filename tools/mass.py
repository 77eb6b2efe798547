"""The size of the package: statements in function bodies, lines, modules, functions.

Headers, docstrings and imports are no statements. `make lint` prints the line.
"""

import ast
import pathlib
import re
import sys
from collections.abc import Iterator

_FUNCTION = ast.FunctionDef, ast.AsyncFunctionDef
_HEADS = (*_FUNCTION, ast.ClassDef, ast.Import, ast.ImportFrom)
_CLAUSE = re.compile(r"(What|Where|How|By how much|Of|That of|Those of|The same)\b")
"""Openings of docstrings that do not name a thing."""


def _counts(node: ast.stmt) -> bool:
    """Whether a node is a statement that is no header, import or docstring."""
    value = node.value if isinstance(node, ast.Expr) else None
    text = isinstance(value, ast.Constant) and isinstance(value.value, str)
    return not (text or isinstance(node, _HEADS))


def _statements(node: ast.AST, inside: bool = False) -> Iterator[ast.stmt]:
    """The statements of function bodies."""
    inside = inside or isinstance(node, _FUNCTION)
    for child in ast.iter_child_nodes(node):
        if inside and isinstance(child, ast.stmt) and _counts(child):
            yield child
        yield from _statements(child, inside)


def mass(root: pathlib.Path) -> dict[str, int]:
    """Counts over all modules below a folder."""
    names: list[str] = ["statements", "lines", "modules", "functions", "clauses"]
    found = dict.fromkeys(names, 0)
    for path in sorted(root.rglob("*.py")):
        text = path.read_text()
        tree = ast.parse(text)
        found["statements"] += sum(1 for _ in _statements(tree))
        found["lines"] += text.count("\n")
        found["modules"] += 1
        for node in ast.walk(tree):
            if isinstance(node, (*_FUNCTION, ast.ClassDef)):
                found["functions"] += isinstance(node, _FUNCTION)
                opening = ast.get_docstring(node) or ""
                found["clauses"] += bool(_CLAUSE.match(opening))
    return found


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "fdp_jax")
    counts = mass(folder)
    print(", ".join(f"{count:,} {name}" for name, count in counts.items()))
