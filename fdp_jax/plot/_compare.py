"""Two guarantees in one picture, and the Bayes error of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .._internal import _checks
from .._internal._calls import explained
from ..comparison import blackwell_dominates, certified_bayes_errors, crossing_priors
from ._overlay import overlay
from ._plot import (
    _ADD,
    _CERTIFIED,
    _NUM_POINTS,
    _REMOVE,
    _alphas,
    _axes,
    _both_of,
    _draw_directions,
    _legend,
    _shade,
    _titled,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SCALES = ("linear", "logit")
_PRIOR = "attacker's prior that the record is absent"
_KINDS = ("bayes_error", "difference", "tradeoff", "profile")


@explained(scale=_checks.one_of(_SCALES))
def bayes_error(
    source,
    ax: Axes | None = None,
    *,
    scale: Literal["linear", "logit"] = "linear",
    label: str | None = None,
) -> Axes:
    """Draw the least error probability of an attacker against the prior.

    The shaded region under the certified lower bound is where no attack can be; the
    dotted lines are min(prior, 1 - prior), what guessing without looking achieves.

    Args:
        source: A mechanism, or the curve of one.
        ax: Axes to draw on; a new figure's if None.
        scale: Of the prior: "linear", or "logit" to see well-informed attackers (both
            axes).
        label: Prefix of the legend entries.

    Returns:
        The axes.

    Guarantee:
        The curves drawn are lower bounds of the Bayes error.

    Raises:
        ValueError: If `scale` is neither of the two.
        ImportError: If matplotlib is missing.
    """
    source, ax, prior = _both_of(source), _axes(ax), _priors(scale)
    floor = 0.0 if scale == "linear" else 1e-7
    height = lambda part: np.maximum(np.asarray(part.bayes_error(prior=prior)), floor)
    _shade(ax, prior, floor, height(source))
    title = "Bayes error (shaded: no attack is here)"
    _finish_errors(ax, scale, prior, title)
    _draw_directions(ax, source, prior, height, label)
    _legend(ax, None)
    return ax


@explained(kind=_checks.one_of(_KINDS))
def compare(
    a: Any,
    b: Any,
    ax: Axes | None = None,
    *,
    kind: Literal["bayes_error", "difference", "tradeoff", "profile"] = "bayes_error",
    scale: Literal["linear", "log", "logit"] = "linear",
    labels: tuple[str, str] = ("a", "b"),
) -> Axes:
    """Draw two guarantees together, and where they differ most.

    Args:
        a: A mechanism (both directions), one direction of it, or a curve.
        b: Another one, under the same neighboring relation.
        ax: Axes to draw on; a new figure's if None.
        kind: "bayes_error" (against the prior), "difference" (of the Bayes errors,
            R_a - R_b, whose maximum and minimum are the two divergences; the band is
            certified), "tradeoff" (false negative against false positive rate) or
            "profile" (delta against epsilon).
        scale: "linear" or "logit" for the first two; also "log" for "tradeoff" (true
            positive against false positive rate).
        labels: Names of the two.

    Returns:
        The axes.

    Guarantee:
        Lines are certified bounds on the private side, except in "difference", where
        the line is the estimate within a certified band.

    Raises:
        ValueError: If `kind` or `scale` is unknown, the relations differ, or the
            labels are equal.
        ImportError: If matplotlib is missing.
    """
    if kind in ("bayes_error", "difference"):
        _checks.choice("scale", scale, _SCALES)
        ax, prior = _axes(ax), _priors(scale)
        errors = certified_bayes_errors(a, b, priors=prior)
        answer = blackwell_dominates(a, b)
        for place in crossing_priors(answer.crossings):
            ax.axvline(place, color=_CERTIFIED, linewidth=0.8, linestyle="-.")
        if kind == "bayes_error":
            _bayes_errors(ax, scale, prior, errors, labels)
        else:
            _difference(ax, scale, prior, errors, answer, labels)
        _legend(ax, None)
        return ax
    _checks.require(len(set(labels)) == 2, "labels must be two different names", labels)
    ax = overlay(dict(zip(labels, (a, b), strict=True)), ax, kind=kind, scale=scale)
    if kind == "tradeoff":
        _, one, other = ax.lines[-3:]
        between = one.get_xdata(), one.get_ydata(), other.get_ydata()
        _shade(ax, *between, alpha=0.15)
    return ax


def _priors(scale: str) -> np.ndarray:
    even = np.linspace(1e-4, 1 - 1e-4, _NUM_POINTS)
    return even if scale == "linear" else _alphas(scale)


def _finish_errors(ax: Axes, scale: str, prior: np.ndarray, title: str) -> None:
    """Axes of Bayes errors, with those of guessing without looking."""
    if scale == "logit":
        ax.set(xscale="logit", yscale="log", xlim=prior[[0, -1]], ylim=(1e-7, 1.0))
    else:
        ax.set(xlim=(0.0, 1.0), ylim=(0.0, 0.52))
    blind = np.minimum(prior, 1 - prior)
    ax.plot(prior, blind, ":", color="black", linewidth=1, label="guessing")
    _titled(ax, title, _PRIOR, "error probability")


def _bayes_errors(
    ax: Axes, scale: str, prior: np.ndarray, found: Any, labels: tuple
) -> None:
    one, other = np.asarray(found.a.lower), np.asarray(found.b.lower)
    _finish_errors(ax, scale, prior, "Bayes errors (lower bounds)")
    ax.plot(prior, one, color=_REMOVE, label=labels[0])
    ax.plot(prior, other, "--", color=_ADD, label=labels[1])
    sides = (other < one, _ADD, labels[1]), (one < other, _REMOVE, labels[0])
    for worse, color, name in sides:
        named = f"{name} less private" if np.any(worse) else None
        _shade(ax, prior, one, other, color, 0.2, where=worse, label=named)


def _difference(
    ax: Axes, scale: str, prior: np.ndarray, found: Any, answer: Any, labels: tuple
) -> None:
    lower = np.asarray(found.a.lower) - np.asarray(found.b.upper)
    upper = np.asarray(found.a.upper) - np.asarray(found.b.lower)
    middle = np.asarray(found.a.estimate) - np.asarray(found.b.estimate)
    ax.axhline(0.0, color="black", linewidth=0.8)
    _shade(ax, prior, lower, upper, alpha=0.3, label="certified")
    ax.plot(prior, middle, color=_REMOVE, label=f"R({labels[0]}) - R({labels[1]})")
    ends = (answer.regret, 1, "--", labels), (answer.reverse, -1, ":", labels[::-1])
    for regret, sign, dashes, (first, second) in ends:
        value = float(regret.upper)
        if value > 1e-9:
            told = f"Delta({first} || {second}) = {value:.3g}"
            line = {"linewidth": 0.8, "linestyle": dashes, "label": told}
            ax.axhline(sign * value, color=_ADD, **line)
    ax.set(xscale=scale, xlim=prior[[0, -1]])
    title = f"Positive: {labels[1]} is less private"
    _titled(ax, title, _PRIOR, "difference of error probabilities")
