"""The privacy report and its text and JSON forms."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from .._internal import _checks
from .._internal._calls import explained
from .._internal._text import at_most, json_ready, round_down, round_up
from ..mechanisms import AbstractMechanism, Sampling, require_mechanism
from ._format import STATUS, Interval, parameters, status_name, versions, worse

REPORTED_FPR = (1e-3, 1e-2, 1e-1)
_RELATION_TEXT = {
    "ADD_OR_REMOVE_ONE": "add or remove one record",
    "REPLACE_ONE": "replace one record",
    "ZERO_OUT": "replace one record by an empty one",
}


@dataclasses.dataclass(frozen=True)
class PrivacyReport:
    """The guarantee of one mechanism at one delta, in plain numbers.

    Everything in it is a bound on the private side unless it is called an estimate:
    epsilon, the true positive rates and the advantage are upper bounds, the Bayes
    error is a lower bound.

    Attributes:
        mechanism: Class name of the mechanism.
        parameters: Its numeric parameters by name.
        relation: Which data sets count as neighbors, in words.
        samplings: How records must be drawn: the schemes that the guarantee assumes.
        delta: Where epsilon was evaluated.
        epsilon: Certified interval of epsilon at delta, over both directions.
        epsilon_remove: The same, with the record against without.
        epsilon_add: The same, without the record against with.
        tpr: Upper bound of an attacker's true positive rate, by false positive rate.
        advantage: Upper bound of the largest TPR - FPR.
        bayes_error: Lower bound of the error at prior 1/2.
        versions: Versions of the software that computed this.
    """

    mechanism: str
    parameters: dict[str, float]
    relation: str
    samplings: tuple[Sampling, ...]
    delta: float
    epsilon: Interval
    epsilon_remove: Interval
    epsilon_add: Interval
    tpr: dict[float, float]
    advantage: float
    bayes_error: float
    versions: dict[str, str]

    @property
    def status(self) -> int:
        """Worst status of the three intervals."""
        parts = (self.epsilon, self.epsilon_remove, self.epsilon_add)
        return max(part.status for part in parts)

    @property
    def sampling(self) -> str:
        """Requirement on how records are drawn, in words."""
        names = [scheme.value for scheme in self.samplings]
        return " and ".join(names) or "no subsampling"

    @property
    def guarantee(self) -> str:
        """The guarantee in one line."""
        if self.epsilon.status == 2 or not math.isfinite(self.epsilon.upper):
            return f"no finite epsilon certified at delta = {self.delta:g}"
        return (
            f"({round_up(self.epsilon.upper)}, {at_most(self.delta)})-DP, "
            f"{self.relation}, {self.sampling}"
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form: dictionaries, strings and finite numbers only."""
        return {
            "guarantee": self.guarantee,
            "mechanism": self.mechanism,
            "parameters": {k: json_ready(v) for k, v in self.parameters.items()},
            "assumptions": {"relation": self.relation, "sampling": self.sampling},
            "bound": "pessimistic",
            "status": status_name(self.status),
            "delta": self.delta,
            "epsilon": self.epsilon.to_dict(),
            "directions": {
                "remove": {"epsilon": self.epsilon_remove.to_dict()},
                "add": {"epsilon": self.epsilon_add.to_dict()},
            },
            "attack": {
                "tpr_upper_at_fpr": {f"{k:g}": v for k, v in self.tpr.items()},
                "advantage_upper": self.advantage,
                "bayes_error_lower_at_prior_0.5": self.bayes_error,
            },
            "versions": dict(self.versions),
        }

    def text(self) -> str:
        """A page to read: the guarantee, its assumptions and what it means."""
        values = ", ".join(f"{k} = {v:.10g}" for k, v in self.parameters.items())
        lines = [
            f"Privacy report: {self.mechanism}",
            f"  {values}",
            "",
            f"Guarantee   {self.guarantee}",
            f"Epsilon     {self.epsilon.text}",
            f"  remove    {self.epsilon_remove.text}",
            f"  add       {self.epsilon_add.text}",
            "",
            "An attacker who sees everything released and knows all other records",
            "decides whether one given record was used. Whatever the attack:",
        ]
        lines += [
            f"  at false positive rate {fpr:<6g} TPR <= {round_up(tpr)}"
            for fpr, tpr in self.tpr.items()
        ]
        lines += [
            f"  advantage (TPR - FPR)         <= {round_up(self.advantage)}",
            f"  error rate at prior 1/2       >= {round_down(self.bayes_error)}",
            "",
            "This holds if",
            f"  - neighbors: {self.relation};",
            f"  - sampling: {self.sampling};",
            "  - each record's share is clipped as the noise multiplier assumes;",
            "  - the noise has the stated distribution (floating-point and",
            "    random-generator defects of the implementation are not covered).",
        ]
        lines += [scheme.caveat for scheme in self.samplings]
        lines += [
            "",
            "The bounds include rounding and truncation errors of the computation.",
            "Computed by " + ", ".join(f"{k} {v}" for k, v in self.versions.items()),
        ]
        return "\n".join(lines)


@explained
def privacy_report(mechanism, *, delta: float) -> PrivacyReport:
    """Evaluate a mechanism at one delta.

    Args:
        mechanism: Any mechanism of this package with concrete scalar parameters.
        delta: In [0, 1].

    Returns:
        The report; its numbers are plain Python floats.

    Guarantee:
        `epsilon.upper`, `tpr` and `advantage` are upper bounds, `epsilon.lower` and
        `bayes_error` are lower bounds.

    Raises:
        ValueError: If delta is outside [0, 1].
        TypeError: If it is not a mechanism.

    Example:
        >>> import fdp_jax as fdp
        >>> run = fdp.DPSGD(noise_multiplier=2.0, sampling_prob=0.01, num_steps=1500)
        >>> report = fdp.reports.privacy_report(run, delta=1e-6)
        >>> report.guarantee
        '(0.890149, 1e-06)-DP, add or remove one record, Poisson sampling'
    """
    mechanism = require_mechanism("mechanism", mechanism)
    # One by one, by the program that answers for other rates, too.
    tpr = {a: float(mechanism.tpr(fpr=a)) for a in REPORTED_FPR}
    remove = Interval.of(mechanism.remove.bounds(delta=delta))
    add = Interval.of(mechanism.add.bounds(delta=delta))
    advantage = float(mechanism.advantage())
    return PrivacyReport(
        **described(mechanism),
        delta=float(delta),
        epsilon=worse(remove, add),
        epsilon_remove=remove,
        epsilon_add=add,
        tpr=tpr,
        advantage=advantage,
        # R(1/2) = (1 - advantage) / 2, rounded down.
        bayes_error=max(math.nextafter(0.5 * (1.0 - advantage), 0.0), 0.0),
        versions=versions(),
    )


def described(mechanism: AbstractMechanism) -> dict[str, Any]:
    """The fields of a report that say what a mechanism is."""
    relation: str = mechanism.relation.name
    return {
        "mechanism": type(mechanism).__name__,
        "parameters": parameters(mechanism),
        "relation": _RELATION_TEXT.get(relation, relation),
        "samplings": tuple(sorted(mechanism.samplings(), key=lambda x: x.value)),
    }


def written(mechanism: AbstractMechanism, stated: Mapping[str, Any]) -> PrivacyReport:
    """A report whose words are the mechanism's, and whose epsilon is the one stated."""
    interval = stated["epsilon"]
    low, middle, high = (float(interval[x]) for x in ("lower", "estimate", "upper"))
    status = _checks.choice("status", interval.get("status"), STATUS)
    epsilon = Interval(low, middle, high, STATUS.index(status))
    return PrivacyReport(
        **described(mechanism),
        delta=float(stated["delta"]),
        epsilon=epsilon,
        epsilon_remove=epsilon,
        epsilon_add=epsilon,
        tpr={},
        advantage=1.0,
        bayes_error=0.0,
        versions={},
    )
