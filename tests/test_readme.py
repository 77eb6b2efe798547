"""Everything the README and the list of mechanisms show runs, with these numbers."""

import ast
import inspect
import pathlib
import re
import shlex

import numpy as np
import pytest

import fdp_jax as fdp
from fdp_jax.cli import main

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
TEXT = README.read_text(encoding="utf-8")
MECHANISMS = (ROOT / "MECHANISMS.md").read_text(encoding="utf-8")
GUIDE = (ROOT / "docs/adding_a_mechanism.md").read_text(encoding="utf-8")


def _blocks(text: str) -> list[tuple[str, str]]:
    return re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


BLOCKS = _blocks(TEXT)
COMMANDS = [
    command
    for language, block in BLOCKS
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


@pytest.mark.parametrize(
    "text", [TEXT, MECHANISMS, GUIDE], ids=["README", "MECHANISMS", "GUIDE"]
)
def test_python_blocks_run_and_numbers_are_right(text):
    namespace: dict = {}
    checked = 0
    for language, block in _blocks(text):
        if language != "python":
            continue
        lines = block.splitlines()
        for statement in ast.parse(block).body:
            if not isinstance(statement, ast.Expr):
                code = compile(ast.Module([statement], []), str(README), "exec")
                exec(code, namespace)
                continue
            value = eval(
                compile(ast.Expression(statement.value), str(README), "eval"), namespace
            )
            last = statement.end_lineno
            assert last is not None
            stated = _NUMBER.search(lines[last - 1])
            if stated is not None:
                checked += 1
                np.testing.assert_allclose(
                    float(value), float(stated[1]), rtol=0, atol=_last_digit(stated[1])
                )
    assert checked >= 5


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


def test_links_to_files_exist():
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        if not target.startswith("http"):
            assert (README.parent / target).exists(), target
