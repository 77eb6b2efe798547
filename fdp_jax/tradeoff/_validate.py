"""Checks of user-given curves, with a sentence on what is wrong."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from .._internal import _checks
from .._internal._calls import explained

_TOLERANCE = 1e-9


@explained
def check_tradeoff(alpha: Any, beta: Any, *, tolerance: float = _TOLERANCE) -> None:
    """Whether some points can lie on one trade-off function.

    Args:
        alpha: False positive rates in strictly increasing order, in [0, 1].
        beta: f there.
        tolerance: Absolute, for rounding errors.

    Raises:
        ValueError: If there is a NaN, beta is outside [0, 1], above 1 - alpha,
            positive at alpha = 1, increasing or not convex; it says where.
        TypeError: If the arrays are traced.

    Example:
        >>> import fdp_jax as fdp
        >>> fdp.tradeoff.check_tradeoff([0.0, 0.5, 1.0], [1.0, 0.2, 0.0])
        >>> fdp.tradeoff.check_tradeoff([0.0, 0.5, 1.0], [0.6, 0.5, 0.0])
        Traceback (most recent call last):
            ...
        ValueError: beta must be convex: it bends down at alpha = 0.5
    """
    alpha, beta = _pair("alpha", alpha, "beta", beta)
    _inside("alpha", alpha, tolerance)
    _inside("beta", beta, tolerance)
    _none("beta must be 0 at alpha = 1", (alpha >= 1) & (beta > tolerance), alpha)
    _none("beta must be at most 1 - alpha", beta > 1 - alpha + tolerance, alpha)
    _none("beta must not increase", np.diff(beta) > tolerance, alpha[1:])
    bends = _concave(alpha, beta, tolerance)
    _none("beta must be convex: it bends down", bends, alpha[1:-1])


@explained
def check_profile(epsilon: Any, delta: Any, *, tolerance: float = _TOLERANCE) -> None:
    """Whether some points can lie on one privacy profile.

    Args:
        epsilon: Thresholds in strictly increasing order, finite.
        delta: The profile there.
        tolerance: Absolute, for rounding errors.

    Raises:
        ValueError: If there is a NaN, delta is outside [0, 1], below
            max(0, 1 - e^epsilon), increasing, or not convex in e^epsilon.
        TypeError: If the arrays are traced.

    Example:
        >>> import fdp_jax as fdp
        >>> fdp.tradeoff.check_profile([-1.0, 0.0, 1.0], [0.7, 0.4, 0.1])
        >>> fdp.tradeoff.check_profile([-1.0, 0.0], [0.5, 0.4])
        Traceback (most recent call last):
            ...
        ValueError: delta must be at least 1 - e^epsilon: fails at epsilon = -1.0
    """
    epsilon, delta = _pair("epsilon", epsilon, "delta", delta)
    _none("epsilon must be finite", np.isinf(epsilon), epsilon)
    _inside("delta", delta, tolerance)
    below = delta < -np.expm1(epsilon) - tolerance
    _none("delta must be at least 1 - e^epsilon: fails", below, epsilon, "epsilon")
    rises = np.diff(delta) > tolerance
    _none("delta must not increase", rises, epsilon[1:], "epsilon")
    bends = _concave_profile(epsilon, delta, tolerance)
    _none(
        "delta must be convex in e^epsilon: it bends down",
        bends,
        epsilon[1:-1],
        "epsilon",
    )


@explained
def check_bayes_error(
    prior: Any, bayes_error: Any, *, tolerance: float = _TOLERANCE
) -> None:
    """Whether some points can lie on one Bayes error.

    Args:
        prior: Priors of H0 in strictly increasing order, in [0, 1].
        bayes_error: R there.
        tolerance: Absolute, for rounding errors.

    Raises:
        ValueError: If there is a NaN, R is negative, above min(prior, 1 - prior) or
            not concave.
        TypeError: If the arrays are traced.

    Example:
        >>> import fdp_jax as fdp
        >>> fdp.tradeoff.check_bayes_error([0.2, 0.5, 0.8], [0.1, 0.3, 0.2])
        >>> fdp.tradeoff.check_bayes_error([0.2, 0.5], [0.1, 0.6])
        Traceback (most recent call last):
            ...
        ValueError: bayes_error must be at most min(prior, 1 - prior): fails at ...
    """
    prior, error = _pair("prior", prior, "bayes_error", bayes_error)
    _inside("prior", prior, tolerance)
    _none("bayes_error must not be negative", error < -tolerance, prior, "prior")
    above = error > np.minimum(prior, 1 - prior) + tolerance
    message = "bayes_error must be at most min(prior, 1 - prior): fails"
    _none(message, above, prior, "prior")
    bends = _concave(prior, -error, tolerance)
    message = "bayes_error must be concave: it bends up"
    _none(message, bends, prior[1:-1], "prior")


def faults_of_tradeoff(alpha: Any, beta: Any, tolerance: float) -> Any:
    """Which vertices from 0 to 1 are no trade-off function's; for traced arrays."""
    alpha = jnp.asarray(alpha)
    run, rise = jnp.diff(alpha), jnp.diff(beta)
    wrong = beta > 1 - alpha + tolerance
    wrong = wrong.at[1:].max((run <= 0) | (rise > tolerance))
    wrong = wrong.at[0].max(alpha[0] > 0)
    wrong = wrong.at[-1].max((alpha[-1] < 1) | (beta[-1] > tolerance))
    turn = rise[:-1] * run[1:] - rise[1:] * run[:-1]
    return wrong.at[1:-1].max(turn > tolerance * (run[1:] + run[:-1]))


def _concave(x: np.ndarray, y: np.ndarray, tolerance: float) -> np.ndarray:
    """Nodes at which a function lies above the chord of its neighbors."""
    width = x[2:] - x[:-2]
    weight = (x[1:-1] - x[:-2]) / width
    return y[1:-1] > (1 - weight) * y[:-2] + weight * y[2:] + tolerance


def _concave_profile(x: np.ndarray, y: np.ndarray, tolerance: float) -> np.ndarray:
    """Whether a profile is concave in e^x, which may overflow."""
    left, right = x[1:-1] - x[:-2], x[2:] - x[1:-1]
    weight = -np.expm1(-left) * np.exp(-right) / -np.expm1(-left - right)
    return y[1:-1] > (1 - weight) * y[:-2] + weight * y[2:] + tolerance


def _pair(
    name: str, value: Any, other_name: str, other: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Two known vectors of one length, without NaN, the first one in order."""
    first, second = _known(name, value), _known(other_name, other)
    _checks.same_length(name, first, other_name, second)
    if np.any(np.diff(first) <= 0):
        place = int(np.argmax(np.diff(first) <= 0))
        raise ValueError(
            f"{name} must be strictly increasing, got {first[place]} before "
            f"{first[place + 1]}"
        )
    return first, second


def _known(name: str, value: Any) -> np.ndarray:
    value = _checks.vector(name, _checks.real, _checks.concrete(name, value))
    return np.asarray(value, np.float64)


def _inside(name: str, value: np.ndarray, tolerance: float) -> None:
    wrong = (value < -tolerance) | (value > 1 + tolerance)
    if np.any(wrong):
        raise ValueError(f"{name} must be in [0, 1], got {value[wrong][0]}")


def _none(
    message: str, wrong: np.ndarray, places: np.ndarray, name: str = "alpha"
) -> None:
    """Raises if something is wrong, naming the first place."""
    if np.any(wrong):
        raise ValueError(f"{message} at {name} = {places[np.argmax(wrong)]}")
