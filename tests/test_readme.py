"""Everything the README shows runs, and prints what the README says."""

import ast
import pathlib
import re
import shlex

import numpy as np
import pytest

from fdp_jax.cli import main

README = pathlib.Path(__file__).resolve().parent.parent / "README.md"
TEXT = README.read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
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


def test_python_blocks_run_and_numbers_are_right():
    namespace: dict = {}
    checked = 0
    for language, block in BLOCKS:
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


def test_links_to_files_exist():
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        if not target.startswith("http"):
            assert (README.parent / target).exists(), target
