"""Sweeps that are described in a TOML file."""

import argparse
import inspect
import os
import pathlib
import tomllib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from .. import calibration, plot, sweeps
from .._internal import _checks
from .._internal._extras import imported
from ._early import is_page
from ._expression import class_in, mechanism_in
from ._options import OK, UNREACHABLE
from ._output import Output

WHOLE_LOOPS = (
    "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=10000000"
)
"""Tells XLA's runtime for CPUs not to schedule the operations of short loops one by
one, which takes up to a fifth of a sweep (docs/performance.md); JAX has no setting.
Other versions of XLA ignore it."""
_PARTS = {"mechanism", "grid", "columns", "queries", "gradients", "chunk_size"}
_SPACINGS = {
    "linear": (np.linspace, _checks.number(_checks.finite)),
    "log": (np.geomspace, _checks.number(_checks.finite_positive)),
}
"""Places between two ends, and the check of the ends."""


def sweep(
    file: str, folder: str, picture: str | None = None, *, progress: bool | None = None
) -> sweeps.Sweep:
    """Runs (or goes on with) the sweep of a file.

    Args:
        file: TOML, see docs/sweeps.md.
        folder: Where the results are kept.
        picture: File for a map of the first answer over two axes; an interactive page
            if it ends in .html.
        progress: As for `sweeps.sweep`.

    Raises:
        ValueError: If the file is no description of a sweep, or of one that has no map.
    """
    asked = _read(file)
    given = [
        _checks.instance(name, asked[name], dict, f"a table [{name}]")
        for name in ("grid", "columns")
        if name in asked
    ]
    _checks.require(len(given) == 1, f"{file} must have one of [grid] and [columns]")
    values = {name: _values(name, x) for name, x in given[0].items()}
    if picture is not None:
        _require_picture(file, picture, {} if "columns" in asked else values)
    table = sweeps.Columns(**values) if "columns" in asked else values
    _set_up_cpu()
    found = sweeps.sweep(
        mechanism_in(asked.get("mechanism", "DPSGD")),
        table,
        queries={
            name: _query(x)
            for name, x in _checks.instance(
                "queries", asked.get("queries", {}), dict, "a table [queries]"
            ).items()
        },
        gradients=asked.get("gradients", ()),
        folder=folder,
        progress=progress,
        **({"chunk_size": asked["chunk_size"]} if "chunk_size" in asked else {}),
    )
    if picture is not None:
        _draw(found, picture)
    return found


def _require_picture(file: str, picture: str, grid: dict[str, Any]) -> None:
    """Says before the sweep what `plot` would say after it."""
    if is_page(picture):
        for module in ("altair", "vl_convert"):
            imported(module, "--plot", "html")
        return
    axes = [name for name, values in grid.items() if np.ndim(values) == 1]
    _checks.require(
        len(axes) == 2,
        f"--plot draws a map over two axes, but {file} has a grid over "
        f"{axes}: give others one value, or ask for a page, which ends in "
        ".html",
    )


def _draw(found: sweeps.Sweep, picture: str) -> None:
    if is_page(picture):
        plot.sweep_page(found, found.queries[0], picture)
        return
    figure: Any = plot.sweep_map(found, found.queries[0]).figure
    figure.savefig(picture, dpi=150)


def _read(file: str) -> dict[str, Any]:
    try:
        asked = tomllib.loads(pathlib.Path(file).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is no TOML: {error}") from None
    wrong = sorted(asked.keys() - _PARTS)
    _checks.require(not wrong, f"{file} may have {sorted(_PARTS)}", wrong)
    return asked


def _values(name: str, given: Any) -> Any:
    """A value or a list of them, or so many between two ends."""
    if not isinstance(given, dict):
        return given
    asked: dict[str, Any] = {"spacing": "linear"} | given
    _checks.require(
        asked.keys() == {"from", "to", "count", "spacing"}
        and asked["spacing"] in tuple(_SPACINGS),
        f"{name} must be a value, a list or {{from, to, count, spacing}} with "
        "spacing 'linear' or 'log'",
        given,
    )
    space, right = _SPACINGS[asked["spacing"]]
    ends = [right(f"{end} of {name}", asked[end]) for end in ("from", "to")]
    return space(*ends, _checks.whole(f"count of {name}", asked["count"], 1, 10**9))


def _query(given: Any) -> Any:
    """An argument of `bounds`, or a target of the name that `target` has."""
    if not isinstance(given, dict) or "target" not in given:
        return given
    rest = dict(given)
    kind = class_in((calibration.targets,), "target", str(rest.pop("target")))
    options = {name: rest.pop(name) for name in ("solve_for", "whole") if name in rest}
    return {"target": _target(kind, rest)} | options


def _target(kind: type, values: dict[str, Any]) -> Callable[..., Any]:
    """A target whose numbers may be the names of columns."""

    def target(**row: Any) -> Any:
        return kind(
            **{k: row[x] if isinstance(x, str) else x for k, x in values.items()}
        )

    columns = [x for x in values.values() if isinstance(x, str)]
    kinds = [inspect.Parameter(x, inspect.Parameter.KEYWORD_ONLY) for x in columns]
    target.__signature__ = inspect.Signature(kinds)  # pyright: ignore
    return target


def _set_up_cpu() -> None:
    """A device for each core, and each loop a function, unless JAX runs already."""
    try:
        jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)
    except RuntimeError:
        return
    given = os.environ.get("XLA_FLAGS", "")
    if "xla_backend_extra_options" not in given:
        os.environ["XLA_FLAGS"] = f"{given} {WHOLE_LOOPS}".strip()


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Run the sweep; the exit status."""
    quiet = False if arguments.quiet else None
    found = sweep(arguments.file, arguments.out, arguments.plot, progress=quiet)
    output.say(found.summary())
    return OK if len(found.refused) < len(found) else UNREACHABLE
