"""One readable answer: which of two guarantees is worse, where, and by how much."""

import dataclasses
import json
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._calls import explained
from .._internal._precision import in_float64
from .._internal._text import json_ready, round_down, round_up
from ..curves import Bounds
from ._dominance import Crossings, Dominance, dominance_of, whole_axis
from ._errors import BayesErrors, certified_bayes_errors
from .delta import engines_of, extremum, prior_of, search
from .explore import Nodes
from .sources import Request, pair

_TOLERANCE = 1e-9
_OF_CROSSINGS = (
    *("prior", "epsilon", "epsilon_lower", "epsilon_upper"),
    *("alpha_a", "alpha_b"),
)
_SHOWN_PRIORS = (0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99)


@dataclasses.dataclass(frozen=True)
class Attack:
    """The attack at which one guarantee is worse than the other by the most.

    Attributes:
        regret: Certified interval (lower, upper) of the difference of Bayes errors.
        estimate: The most accurate value of it.
        prior: Prior of H0 (record absent).
        epsilon: Threshold of the test, logit(prior).
        alpha_a: False positive rate of the best attack on a there (estimate).
        alpha_b: The same for b.
    """

    regret: tuple[float, float]
    estimate: float
    prior: float
    epsilon: float
    alpha_a: float
    alpha_b: float


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The result of `compare` in plain numbers; print it.

    Attributes:
        a: Name of the first guarantee.
        b: Name of the second one.
        verdict: "a dominates" (a is nowhere more private), "b dominates", "equal",
            "neither", or "undecided".
        b_worse: Where b is less private than a by the most: Delta(a || b).
        a_worse: Where a is less private than b by the most: Delta(b || a).
        crossings: Priors at which the order changes.
        regions: (lowest prior, highest prior, which one is less private there):
            "a", "b", or "neither" where they differ by less than a verdict of
            dominance forgives.
        table: Rows (prior, epsilon, Bayes error of a, of b): certified lower bounds.
        method: The engines that answered.
    """

    a: str
    b: str
    verdict: str
    b_worse: Attack
    a_worse: Attack
    crossings: tuple[dict[str, float], ...]
    regions: tuple[tuple[float, float, str], ...]
    table: tuple[tuple[float, float, float, float], ...]
    method: str

    @property
    def symmetrized(self) -> tuple[float, float]:
        """Certified interval of max(Delta(a || b), Delta(b || a))."""
        ends = zip(self.b_worse.regret, self.a_worse.regret, strict=True)
        lower, upper = (max(pair) for pair in ends)
        return lower, upper

    @property
    def _conceded(self) -> str:
        """The regret that a verdict of dominance leaves open, rounded up."""
        ends = {"a dominates": self.b_worse, "b dominates": self.a_worse}
        attack = ends.get(self.verdict)
        upper = self.symmetrized[1] if attack is None else attack.regret[1]
        return round_up(upper, 2)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form: dictionaries, lists, strings and finite numbers only."""
        return json_ready(
            {
                "a": self.a,
                "b": self.b,
                "verdict": self.verdict,
                "delta_divergence": {
                    "a_b": _attack_dict(self.b_worse),
                    "b_a": _attack_dict(self.a_worse),
                },
                "symmetrized": dict(
                    zip(("lower", "upper"), self.symmetrized, strict=True)
                ),
                "crossings": [dict(c) for c in self.crossings],
                "regions": [
                    {"prior_from": low, "prior_to": high, "less_private": who}
                    for low, high, who in self.regions
                ],
                "bayes_error_lower": [
                    dict(zip(("prior", "epsilon", "a", "b"), row, strict=True))
                    for row in self.table
                ],
                "method": self.method,
            }
        )

    def to_json(self, **options: Any) -> str:
        """The comparison as JSON text; options go to `json.dumps`."""
        return json.dumps(self.to_dict(), **options)

    def __str__(self) -> str:
        sentence = _SENTENCES[self.verdict].format(regret=self._conceded)
        lines = [f"a = {self.a}", f"b = {self.b}", "", sentence, ""]
        for name, other, attack in (
            ("b", "a", self.b_worse),
            ("a", "b", self.a_worse),
        ):
            lines += _attack_lines(name, other, attack)
        if len(self.regions) > 1:
            lines += ["", 'By the attacker\'s prior of "record absent":']
            same = f"equally private, to within {self._conceded}"
            lines += [
                f"  {low:.6g} to {high:.6g}: "
                + (same if who == "neither" else f"{who} is less private")
                for low, high, who in self.regions
            ]
        lines += ["", "An attacker is wrong with probability at least"]
        lines += [f"  {'prior':>6} {'epsilon':>8} {'a':>12} {'b':>12}"]
        for prior, epsilon, one, other in self.table:
            shown = round_down(one), round_down(other)
            lines.append(f"  {prior:>6g} {epsilon:>8.3f} {shown[0]:>12} {shown[1]:>12}")
        return "\n".join(lines)


_SENTENCES = {
    "a dominates": "b is at least as private as a against every attacker, to within\n"
    "a regret of {regret} (certified).",
    "b dominates": "a is at least as private as b against every attacker, to within\n"
    "a regret of {regret} (certified).",
    "equal": "a and b are equally private against every attacker, to within a regret\n"
    "of {regret} (certified).",
    "neither": "Neither is more private against every attacker (certified).",
    "undecided": "The bounds do not decide whether one of them is more private.",
}


@explained
def compare(a: Any, b: Any) -> Comparison:
    """Which of two guarantees is worse, where, and by how much.

    Args:
        a: A mechanism (both directions), one direction of it, a curve, or any other
            guarantee, with known numbers (not under `jax.jit`).
        b: Another one, under the same neighboring relation.

    Returns:
        A `Comparison`: print it, or take `to_dict()`, `to_json()`.

    Guarantee:
        The verdict, the intervals of both divergences and the table are certified;
        dominance means up to a regret of 1e-9.  False positive rates are estimates.

    Raises:
        ValueError: If the neighboring relations differ.
        TypeError: If an argument is not a guarantee.

    Example:
        >>> import fdp_jax as fdp
        >>> found = fdp.compare(fdp.Gaussian(1.0), fdp.Laplace(1.0))
        >>> found.verdict
        'neither'
        >>> print(f"{found.b_worse.estimate:.6f} {found.a_worse.estimate:.6f}")
        0.005272 0.034139

    References:
        Kaissis et al. (2024), Section 4.
    """
    first, second = pair(a, b)
    found, places = _compared(first, second)
    errors = certified_bayes_errors(a, b, priors=_SHOWN_PRIORS)
    back = np.asarray(places)
    return Comparison(
        a=describe(a),
        b=describe(b),
        verdict=_verdict(found),
        b_worse=_attack(found.regret, back[0]),
        a_worse=_attack(found.reverse, back[1]),
        crossings=_crossing_dicts(found.crossings),
        regions=_regions(found),
        table=_table(errors),
        method=found.regret.method,
    )


@explained
def describe(guarantee: Any) -> str:
    """A guarantee in one line: its class and its numbers."""
    side = getattr(guarantee, "direction", None)
    subject = getattr(guarantee, "mechanism", guarantee)
    leaves = jax.tree_util.tree_leaves_with_path(subject)
    shown = [
        f"{jax.tree_util.keystr(path).lstrip('.')}={float(leaf):.6g}"
        for path, leaf in leaves
        if np.shape(leaf) == ()
    ]
    if len(shown) > 8:
        shown = [*shown[:7], "..."]
    text = f"{type(subject).__name__}({', '.join(shown)})"
    return text if side in (None, "both") else f"{text}.{side}"


# ----------------------------------------------------------------- inside the program


@in_float64
def _compared(first: Request, second: Request) -> tuple[Dominance, Array]:
    found = stop_gradient(search(first, second))
    name = engines_of(first, second)
    answer = dominance_of(found, jnp.asarray(_TOLERANCE), name)
    return answer, _places(found.nodes)


def _places(nodes: Nodes) -> Float[Array, "2 4"]:
    """Prior, threshold and both type I errors at either extremum."""
    axis = whole_axis(nodes)

    def at(one: Nodes) -> Array:
        found = extremum(one)
        epsilon = jnp.where(found.left, -found.epsilon, found.epsilon)
        index = jnp.argmin(jnp.abs(axis.epsilon - epsilon))
        rates = axis.alpha[0][index], axis.alpha[1][index]
        return jnp.stack([prior_of(found), epsilon, *rates])

    return jax.vmap(at)(nodes.both_ways())


# ------------------------------------------------------------- outside of the program


def _verdict(found: Dominance) -> str:
    ways = found.regret, found.reverse
    small, small_back = (float(way.upper) <= _TOLERANCE for way in ways)
    if small or small_back:
        return _OF_SMALL[small, small_back]
    large = all(float(way.lower) > _TOLERANCE for way in ways)
    return "neither" if large else "undecided"


_OF_SMALL = {
    (True, True): "equal",
    (True, False): "a dominates",
    (False, True): "b dominates",
}
"""Verdicts by which of the two regrets, of a and of b, are certified to be small."""


def _attack(regret: Bounds, place: Any) -> Attack:
    prior, epsilon, alpha_a, alpha_b = (float(x) for x in place)
    ends = float(regret.lower), float(regret.upper)
    return Attack(ends, float(regret.estimate), prior, epsilon, alpha_a, alpha_b)


def _crossing_dicts(found: Crossings) -> tuple[dict[str, float], ...]:
    rows = [
        {name: float(getattr(found, name)[i]) for name in _OF_CROSSINGS}
        for i in range(int(found.count))
    ]
    return tuple(sorted(rows, key=lambda row: row["prior"]))


def _regions(found: Dominance) -> tuple[tuple[float, float, str], ...]:
    count = int(found.crossings.count)
    none = max(float(found.regret.upper), float(found.reverse.upper)) <= _TOLERANCE
    if none:
        return ()
    if count == 0:
        who = (
            "b" if float(found.regret.estimate) > float(found.reverse.estimate) else "a"
        )
        return ((0.0, 1.0, who),)
    priors = np.asarray(found.crossings.prior)[:count][::-1]
    below = np.asarray(found.crossings.below)[:count][::-1]
    # R_b > R_a: b is the more private one.
    names = ["a" if sign > 0 else "b" for sign in below]
    last = "b" if names[-1] == "a" else "a"
    edges = [0.0, *(float(p) for p in priors), 1.0]
    # Where one dominates, the other is worse by no more than was forgiven.
    forgiven = {"a dominates": "b", "b dominates": "a"}.get(_verdict(found))
    whose = ["neither" if who == forgiven else who for who in (*names, last)]
    return tuple(
        (low, high, who)
        for low, high, who in zip(edges, edges[1:], whose, strict=False)
    )


def _table(errors: BayesErrors) -> tuple[tuple[float, float, float, float], ...]:
    rows = zip(
        np.asarray(errors.prior),
        np.asarray(errors.a.lower),
        np.asarray(errors.b.lower),
        strict=True,
    )
    return tuple(
        (float(p), math.log(p / (1 - p)), float(one), float(other))
        for p, one, other in rows
    )


def _attack_dict(attack: Attack) -> dict[str, Any]:
    low, high = attack.regret
    return {
        "lower": low,
        "estimate": attack.estimate,
        "upper": high,
        "prior": attack.prior,
        "epsilon": attack.epsilon,
        "fpr_a": attack.alpha_a,
        "fpr_b": attack.alpha_b,
    }


def _attack_lines(worse: str, better: str, attack: Attack) -> list[str]:
    low, high = attack.regret
    title = f"Delta({better} || {worse})"
    if high <= _TOLERANCE:
        return [f"{title} <= {round_up(high)}: next to nothing."]
    interval = f"[{round_down(low)}, {round_up(high)}]"
    lines = [
        f"{title} in {interval}: by so much {worse} can make",
        f"  an attack better than {better}; most at prior {attack.prior:.6g} "
        f"(epsilon = {attack.epsilon:.4g}),",
        f"  where the best attacks have false positive rates {attack.alpha_a:.4g} (a) "
        f"and {attack.alpha_b:.4g} (b).",
    ]
    return lines
