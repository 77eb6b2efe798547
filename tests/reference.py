"""Reference numbers of `tests/data`, loaded once, and what tests do with them."""

import functools
import json
import pathlib

import mpmath as mp

_DATA = pathlib.Path(__file__).resolve().parent / "data"

mp.mp.dps = 40


@functools.cache
def _load(name: str):
    return json.loads((_DATA / name).read_text(encoding="utf-8"))


def dpsgd_truth(kind: str) -> list[dict]:
    """Entries of one kind: "eps", "delta" or "beta"."""
    return [e for e in _load("dpsgd_truth.json")["entries"] if e["kind"] == kind]


def tail_truth() -> list[dict]:
    return _load("tail_truth.json")["entries"]


def wide_truth() -> list[dict]:
    return _load("wide_truth.json")["entries"]


def catalogue_truth() -> list[dict]:
    return _load("catalogue_truth.json")["entries"]


def checks(*topics: str) -> list[dict]:
    """Entries of checks.json whose id is 01.<topic>.<anything>."""
    return [
        e
        for e in _load("checks.json")
        if e["id"].startswith("01.") and e["id"].split(".")[1] in topics
    ]


def comparison_checks() -> dict[str, dict]:
    """Entries of checks.json about comparisons (02.), by their ids."""
    return {e["id"][3:]: e for e in _load("checks.json") if e["id"].startswith("02.")}


def divisible_checks(*topics: str) -> list[dict]:
    """Entries of checks.json whose id is 04.<topic>.<anything>."""
    return [
        e
        for e in _load("checks.json")
        if e["id"].startswith("04.") and e["id"].split(".")[1] in topics
    ]


def peer_vectors(quantity: str, *mechanisms: str | None) -> list[dict]:
    return [
        e
        for e in _load("peer_vectors.json")
        if e["quantity"] == quantity and e["params"].get("mechanism") in mechanisms
    ]


def exact(value) -> mp.mpf:
    """A float, NumPy or JAX number as it stands."""
    return mp.mpf(float(value))


def half_unit(entry: dict) -> mp.mpf:
    """Uncertainty of a printed truth: one unit in its last correct digit."""
    value = mp.mpf(entry["value"])
    return abs(value) * mp.mpf(10) ** -entry["digits"]


def contour_side(run, direction: str):
    """The guarantee that a truth's direction names; "max" is the symmetrized one."""
    return run if direction in ("max", "add_or_remove_one") else getattr(run, direction)


def topic_checks(topic: str, prefix: str) -> list[dict]:
    """Entries of checks.json whose id is <topic>.<prefix>...; e.g. "03", "ump."."""
    start = f"{topic}.{prefix}"
    return [e for e in _load("checks.json") if e["id"].startswith(start)]
