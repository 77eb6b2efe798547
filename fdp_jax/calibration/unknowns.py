"""Which number of a mechanism is solved for: found by name, path or selector."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._internal import _checks
from ..mechanisms import RandomRepeat, Search, search_of

Selector = str | Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class Unknown:
    """One or several leaves of a mechanism, and how a search varies them."""

    name: str
    leaves: tuple[int, ...]
    """Their places among the mechanism's leaves (None counts as one)."""
    factor: bool
    """Whether the unknown multiplies the leaves rather than replaces the one leaf."""
    leaks: int
    lowest: float
    highest: float
    start: float
    whole: bool = False
    fractions: bool = True
    """Whether the mechanism is defined between whole numbers."""
    caps: tuple[float, ...] = ()
    """Largest values the leaves may take, for factors."""
    counts: bool = False
    """Whether it is a number of releases."""

    @property
    def ends(self) -> tuple[float, float]:
        """The range of t, see `at`."""
        if self.lowest > 0:
            return math.log(self.lowest), math.log(self.highest)
        return self.lowest, self.highest

    @property
    def first(self) -> float:
        """The start of a search for want of anything better."""
        return math.log(self.start) if self.lowest > 0 else self.start

    def at(self, t: Array) -> Array:
        """The unknown as a function of the number that the search varies."""
        value = jnp.exp(t) if self.lowest > 0 else t
        return value if self.fractions else jnp.round(value)

    def put(self, mechanism: Any, value: Any) -> Any:
        """The mechanism with a value of the unknown put in."""
        leaves, structure = _flatten(mechanism)
        for place, cap in zip(self.leaves, self.caps, strict=True):
            new = value
            if self.factor:
                new = leaves[place] * value
                new = jnp.minimum(new, cap) if math.isfinite(cap) else new
            leaves[place] = new
        found = jax.tree.unflatten(structure, leaves)
        return _with_fractions(found) if self.counts else found

    def filled(self, mechanism: Any) -> Any:
        """The mechanism with some value, where it may be left open."""
        return mechanism if self.factor else self.put(mechanism, np.float64(self.start))

    def left_open(self, mechanism: Any) -> Any:
        """The mechanism without the value that a search replaces."""
        return mechanism if self.factor else self.put(mechanism, None)


def find_unknown(
    mechanism: Any,
    solve_for: Selector,
    *,
    within: tuple[float, float] | None = None,
    whole: bool = False,
) -> Unknown:
    """Looks up what is to be solved for.

    Raises:
        ValueError: If there is no such parameter, or several.
    """
    with_paths, _ = jax.tree_util.tree_flatten_with_path(mechanism, is_leaf=_is_open)
    paths = [_keys(path) for path, _ in with_paths]
    values = [value for _, value in with_paths]
    if isinstance(solve_for, str):
        chosen = [_by_name(mechanism, paths, solve_for)]
    else:
        _checks.instance(
            "solve_for", solve_for, Callable, "the name of a parameter or a selector"
        )
        chosen = list(_by_selector(mechanism, len(paths), solve_for))
    kinds = [_declared(mechanism, paths[i]) for i in chosen]
    by_name = isinstance(solve_for, str)
    name = solve_for if by_name else ", ".join(_dotted(paths[i]) for i in chosen)
    factor = len(chosen) > 1 or getattr(values[chosen[0]], "ndim", 0) > 0
    _checks.require(
        not factor or all(values[i] is not None for i in chosen),
        f"{name} must have values, of which a common factor is found; "
        "only a single parameter may be left open",
    )
    leaks = kinds[0].leaks if len({kind.leaks for kind in kinds}) == 1 else 0
    if factor:
        kind, caps = Search(leaks, 1e-12, 1e12), tuple(kind.cap for kind in kinds)
    else:
        kind, caps = kinds[0], (math.inf,)
    lowest, highest, start = kind.lowest, kind.highest, kind.start
    if within is not None:
        lowest, highest = _checked_range(within)
        middle = math.sqrt(lowest * highest) if lowest > 0 else (lowest + highest) / 2
        start = start if lowest < start < highest else middle
    fractions = _has_fractions(mechanism, paths[chosen[0]])
    whole = whole or not fractions
    if whole:
        rule = f"{name} is found as a common factor, which is never whole"
        _checks.require(not factor, rule)
        lowest = max(1.0, math.ceil(lowest))
        highest = min(float(math.floor(highest)), 2.0**52)
        _checks.require(
            lowest <= highest, "within must hold a whole number from 1 to 2^52", within
        )
    return Unknown(
        name,
        tuple(chosen),
        factor,
        leaks,
        lowest,
        highest,
        start,
        whole,
        fractions,
        caps,
        any(kind.counts for kind in kinds),
    )


def _checked_range(within: tuple[float, float]) -> tuple[float, float]:
    ends = np.asarray(_checks.numbers("within", within))
    _checks.require(
        ends.shape == (2,) and -math.inf < ends[0] < ends[1] < math.inf,
        "within must be (low, high), finite",
        within,
    )
    return float(ends[0]), float(ends[1])


def _is_open(x: Any) -> bool:
    return x is None


def _flatten(mechanism: Any) -> tuple[list[Any], Any]:
    return jax.tree.flatten(mechanism, is_leaf=_is_open)


def _keys(path: tuple) -> tuple[str | int, ...]:
    kinds = "name", "idx", "key"
    return tuple(
        next(getattr(key, kind) for kind in kinds if hasattr(key, kind)) for key in path
    )


def _dotted(keys: tuple[str | int, ...]) -> str:
    return ".".join(map(str, keys))


def _last_name(keys: tuple[str | int, ...]) -> str:
    return next((k for k in reversed(keys) if isinstance(k, str)), "")


def _by_name(mechanism: Any, paths: list[tuple[str | int, ...]], name: str) -> int:
    """The one leaf whose path is, or ends with, the name given."""
    wanted = name.replace("[", ".").replace("]", "")
    exact = [i for i, keys in enumerate(paths) if _dotted(keys) == wanted]
    # The index of the only entry of a tuple may be left out.
    short = [keys[:-1] if isinstance(keys[-1], int) else keys for keys in paths]
    ends = lambda keys: {_dotted(keys[k:]) for k in range(len(keys))}
    found = exact or [
        i
        for i, keys in enumerate(paths)
        if name and (wanted in ends(keys) or wanted in ends(short[i]))
    ]
    if len(found) == 1:
        return found[0]
    kind = type(mechanism).__name__
    if found:
        several = ", ".join(_dotted(paths[i]) for i in found)
        raise ValueError(
            f"solve_for={name!r} is ambiguous for {kind}: name one of {several}, or "
            "select all of them for a common factor"
        )
    known = [_dotted(keys) for keys in paths if not _last_name(keys).startswith("_")]
    raise ValueError(f"solve_for must be one of {known} for {kind}, got {name!r}")


def _by_selector(
    mechanism: Any, count: int, where: Callable[[Any], Any]
) -> tuple[int, ...]:
    """The leaves that a function of the mechanism selects."""
    _, structure = _flatten(mechanism)
    numbered = jax.tree.unflatten(structure, range(count))
    selected = jax.tree.leaves(where(numbered))
    if not selected or not all(isinstance(i, int) for i in selected):
        raise ValueError(
            "solve_for must select numeric parameters of the mechanism, got "
            f"{where(numbered)!r}"
        )
    return tuple(selected)


def _at(mechanism: Any, path: tuple[str | int, ...]) -> Any:
    """The node of a tree at a path."""
    for key in path:
        mechanism = mechanism[key] if isinstance(key, int) else getattr(mechanism, key)
    return mechanism


def _owner(mechanism: Any, path: tuple[str | int, ...]) -> Any:
    """The mechanism (or other object) whose field stands at a path."""
    name = _last_name(path)
    return _at(mechanism, path[: path.index(name)]) if name in path else None


def _declared(mechanism: Any, path: tuple[str | int, ...]) -> Search:
    """The declaration of the number at a path."""
    owner = _owner(mechanism, path)
    return search_of(owner, _last_name(path)) if owner is not None else Search()


def _with_fractions(mechanism: Any) -> Any:
    """The mechanism, its random numbers of releases no longer known to be whole."""
    is_random = lambda part: isinstance(part, RandomRepeat)
    changed = lambda part: part.with_fractions() if is_random(part) else part
    return jax.tree.map(changed, mechanism, is_leaf=is_random)


def _has_fractions(mechanism: Any, path: tuple[str | int, ...]) -> bool:
    """Whether the number at a path may lie between whole numbers."""
    if not _declared(mechanism, path).counts:
        return True
    index = path[-1] if isinstance(path[-1], int) else 0
    owner = _owner(mechanism, path)
    owner.require_many(index)
    return owner.takes_fractions(index)
