"""Everything that the README and the documentation show runs, with these numbers."""

import ast
import functools
import inspect
import pathlib
import re
import shlex
import types
from typing import NamedTuple

import numpy as np
import pytest

import fdp_jax as fdp
from fdp_jax.cli import main

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = {
    "README": README,
    "MECHANISMS": ROOT / "MECHANISMS.md",
    "GUIDE": DOCS / "adding_a_mechanism.md",
    **{
        name.upper(): DOCS / f"{name}.md"
        for name in (
            *("start", "guarantee", "sampling", "calibrating", "training"),
            *("accounting", "auditing", "comparing", "reporting", "releases"),
            *("curves", "performance", "sharp_edges", "sweeps", "epochs"),
            *("published", "recipes"),
        )
    },
}
"""Whose Python blocks are run; others have tests of their own."""
WITHOUT_PYTHON = {"benchmarks", "engines", "notation", "vocabulary"}
TEXTS = {name: path.read_text(encoding="utf-8") for name, path in PAGES.items()}
MECHANISMS = TEXTS["MECHANISMS"]


def _blocks(text: str) -> list[tuple[str, str]]:
    return re.findall(r"^```([^\n]*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


COMMANDS = [
    command
    for text in TEXTS.values()
    for language, block in _blocks(text)
    if language == "console"
    for command in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    if command.startswith("fdp-jax ")
]
_NUMBER = re.compile(r"#\s*(-?\d+\.?\d*(?:e-?\d+)?)(?![\w.])")


def _last_digit(text: str) -> float:
    """One unit in the last printed digit."""
    mantissa, _, exponent = text.partition("e")
    decimals = len(mantissa.partition(".")[2])
    return 10.0 ** (int(exponent or 0) - decimals)


class _Statement(NamedTuple):
    code: types.CodeType
    """To be evaluated, if it is an expression, else to be executed."""
    sets: set[str]
    reads: set[str]
    stated: str | None
    """The number that stands behind it."""


def _statements(blocks: list[str]) -> list[_Statement]:
    found = []
    for block in blocks:
        lines = block.splitlines()
        for node in ast.parse(block).body:
            names = [x for x in ast.walk(node) if isinstance(x, ast.Name)]
            imports = [x for x in ast.walk(node) if isinstance(x, ast.alias)]
            sets = {x.id for x in names if isinstance(x.ctx, ast.Store)}
            sets |= {(x.asname or x.name).partition(".")[0] for x in imports}
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                sets = {node.name}
            reads = {x.id for x in names if isinstance(x.ctx, ast.Load)}
            if not isinstance(node, ast.Expr):
                code = compile(ast.Module([node], []), str(README), "exec")
                found.append(_Statement(code, sets, reads, None))
                continue
            code = compile(ast.Expression(node.value), str(README), "eval")
            last = node.end_lineno
            assert last is not None
            stated = _NUMBER.search(lines[last - 1])
            found.append(_Statement(code, sets, reads, stated and stated[1]))
    return found


def _python(text: str, *, long: bool = False) -> list[str]:
    wanted = ("python", "python slow") if long else ("python",)
    return [block for language, block in _blocks(text) if language in wanted]


class _Section(NamedTuple):
    before: list[_Statement]
    """What earlier sections define and this one makes use of."""
    own: list[_Statement]


def _sections(text: str) -> dict[str, _Section]:
    """What is shown under each heading; all of it is under one of them."""
    found: dict[str, _Section] = {}
    earlier: list[_Statement] = []
    for part in re.split(r"^(?=##? )", text, flags=re.MULTILINE):
        own = _statements(_python(part))
        if own:
            missing, before = set[str](), []
            for x in reversed(own):
                missing = (missing - x.sets) | x.reads
            for x in reversed(earlier):
                if x.sets & missing:
                    missing = (missing - x.sets) | x.reads
                    before.insert(0, x)
            found[part.splitlines()[0].strip("# ")] = _Section(before, own)
        earlier += own
    return found


SECTIONS = {name: _sections(text) for name, text in TEXTS.items()}


@pytest.mark.parametrize("name", TEXTS)
def test_sections_are_the_whole_text(name):
    every = [x for section in SECTIONS[name].values() for x in section.own]
    assert len(every) == len(_statements(_python(TEXTS[name])))
    assert any(x.stated is not None for x in every)


def test_numbers_stand_behind_what_is_shown():
    sections = [section for page in SECTIONS.values() for section in page.values()]
    stated = [x.stated for section in sections for x in section.own]
    assert sum(x is not None for x in stated) > 100


def test_every_page_is_in_the_navigation_of_the_site():
    # `make docs` refuses one that is not; it needs more than the suite installs.
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    names = [x for x in dir(fdp) if inspect.ismodule(getattr(fdp, x))]
    pages = {f"reference/{x}.md" for x in ["fdp_jax", *names]}
    pages |= {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    pages |= {f"benchmarks/{x.name}" for x in ROOT.glob("benchmarks/*.md")}
    pages |= {f"notebooks/{x.stem}.md" for x in ROOT.glob("notebooks/*.ipynb")}
    listed = re.findall(r"([\w/]+\.md)$", navigation, re.MULTILINE)
    assert pages <= set(listed)
    assert len(listed) == len(set(listed))


def test_every_page_is_run_or_has_nothing_to_run():
    pages = {path.stem for path in DOCS.glob("*.md")}
    run = {path.stem for path in PAGES.values()}
    assert pages - run == WITHOUT_PYTHON | {"coming_from", "stories"}
    for name in WITHOUT_PYTHON:
        assert not _python((DOCS / f"{name}.md").read_text(encoding="utf-8")), name


@pytest.mark.parametrize(
    ("name", "title"), [(name, title) for name in TEXTS for title in SECTIONS[name]]
)
def test_python_blocks_run_and_numbers_are_right(name, title):
    before, own = SECTIONS[name][title]
    namespace, done = _read(name)
    _run([x for x in before if id(x) not in done], own, namespace)
    done.update(map(id, before + own))


@pytest.mark.slow
@pytest.mark.parametrize("name", [x for x in TEXTS if "```python slow" in TEXTS[x]])
def test_blocks_that_take_long_run_and_numbers_are_right(name):
    _run([], _statements(_python(TEXTS[name], long=True)), {})


@functools.cache
def _read(name: str) -> tuple[dict, set[int]]:
    """What a page has defined so far, and the statements that did."""
    del name
    return {}, set()


def _run(before: list[_Statement], own: list[_Statement], namespace: dict) -> None:
    for statement in before:
        exec(statement.code, namespace)
    for statement in own:
        value = eval(statement.code, namespace)
        if statement.stated is not None:
            np.testing.assert_allclose(
                float(value),
                float(statement.stated),
                rtol=0,
                atol=_last_digit(statement.stated),
            )
        elif isinstance(value, bool) or getattr(value, "dtype", 0) in (np.dtype(bool),):
            assert value


def _recipes() -> list[tuple[str, str, str]]:
    """Title, library and code of the recipes for libraries that may be missing."""
    parts = re.split(r"^## ", TEXTS["RECIPES"], flags=re.MULTILINE)[1:]
    found = [(x.splitlines()[0], *block) for x in parts for block in _blocks(x)]
    return [(a, b.removeprefix("python").strip(), c) for a, b, c in found]


@pytest.mark.parametrize(
    ("library", "code"), [x[1:] for x in _recipes() if x[1]], ids=lambda x: x[:20]
)
def test_recipes_for_other_libraries_run(library, code, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    pytest.importorskip(library)
    first, *_ = SECTIONS["RECIPES"].values()
    _run(first.own, _statements([code]), {})


def test_recipes_are_short():
    lengths = {title: len(code.splitlines()) for title, _, code in _recipes()}
    assert len(lengths) == 7
    assert max(lengths.values()) <= 40


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c.splitlines()[0])
def test_console_blocks_print_what_is_shown(command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    typed, *expected = command.replace("\\\n", "").strip().splitlines()
    assert main(shlex.split(typed)[1:]) == 0
    shown = "\n".join(expected).split()
    if shown:
        assert capsys.readouterr().out.split() == shown


def test_every_mechanism_is_listed():
    public = [getattr(fdp, name) for name in dir(fdp)]
    classes = [x for x in public if inspect.isclass(x)]
    listed = [x for x in classes if issubclass(x, fdp.AbstractMechanism)]
    assert len(listed) > 20
    for mechanism in set(listed) - {fdp.AbstractMechanism}:
        assert f"`{mechanism.__name__}" in MECHANISMS


@pytest.mark.parametrize(
    "path", [*ROOT.glob("*.md"), *DOCS.glob("*.md")], ids=lambda path: path.name
)
def test_links_to_files_exist(path):
    text = path.read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```|`[^`\n]+`", "", text, flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)\)", prose):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), target
