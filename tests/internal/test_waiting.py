"""The line that is printed where an answer waits for the compiler."""

import io
import sys
import time

import jax.numpy as jnp
import pytest

from fdp_jax._internal import _compilation, _waiting


class _Terminal(io.StringIO):
    def __init__(self, terminal: bool):
        super().__init__()
        self.isatty = lambda: terminal


@pytest.fixture
def heard(monkeypatch):
    """Makes a standard error, on which lines come at once."""
    monkeypatch.setattr(_waiting, "_AFTER", 0.01)
    monkeypatch.setattr(_waiting._Wait, "until", -float("inf"))
    monkeypatch.delenv("FDP_JAX_WAITING", raising=False)

    def make(*, terminal):
        found = _Terminal(terminal)
        monkeypatch.setattr(sys, "stderr", found)
        return found

    return make


@pytest.mark.parametrize(
    ("terminal", "variable", "lines"),
    [
        (True, None, 1),
        (False, None, 0),
        (False, "on", 1),
        (True, "off", 0),
        (False, "0", 0),
    ],
)
def test_a_line_comes_once_where_somebody_reads_it(
    terminal, variable, lines, heard, monkeypatch, tmp_path
):
    monkeypatch.setenv("FDP_JAX_CACHE", str(tmp_path))
    if variable is not None:
        monkeypatch.setenv("FDP_JAX_WAITING", variable)
    error = heard(terminal=terminal)
    for _ in range(2):  # programs of one question
        with _waiting.waiting():
            time.sleep(0.1)
    said = error.getvalue().splitlines()
    assert len(said) == lines
    assert all(line.endswith(f"made once, and kept in {tmp_path}") for line in said)


def test_the_next_question_is_another_wait(heard, monkeypatch):
    monkeypatch.setattr(_waiting, "_PAUSE", 0.0)
    error = heard(terminal=True)
    for pause in (0.1, 0.0, 0.1):
        with _waiting.waiting():
            time.sleep(pause)
    assert len(error.getvalue().splitlines()) == 2


def test_programs_are_waited_for(heard):
    error = heard(terminal=True)

    @_compilation.jit_on_its_own
    def slow(x):
        time.sleep(0.1)  # while it is traced
        return x + 1

    assert slow(jnp.ones(())) == 2
    assert "still working" in error.getvalue()
    error = heard(terminal=True)
    assert slow(jnp.zeros(())) == 1
    assert error.getvalue() == ""
