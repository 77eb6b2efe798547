"""The receipt of a private training: what to publish beside a model."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from .._internal import _checks
from .._internal._calls import explained
from .._internal._show import short
from .._internal._text import json_ready, round_down, round_up
from ..divergences import gdp
from ..mechanisms import DPSGD, AbstractMechanism
from ..sampling import Poisson
from ..training import Plan
from ._format import Interval
from ._report import PrivacyReport, privacy_report, written

SCHEMA = "fdp_jax/receipt/1"
_ALPHAS = (1e-3, 1e-2, 0.05, 0.1, 0.25, 0.5)
_ASIDE = 1e5
"""How many times less than delta mu sets aside."""
_NOTES = {
    "trust_model": "Trust model",
    "utility_and_bias": "Utility and bias",
    "data_security": "Data security and access control",
    "data_collection": "Data collection exposure",
}
_UNSTATED = "Not stated."


@dataclasses.dataclass(frozen=True)
class Receipt:
    """All that others need to judge the privacy of a release and to compute it again.

    Attributes:
        report: The guarantee at one delta, with both ends and both directions.
        unit: What a record is: whose data the guarantee is about.
        sampler: How batches are drawn, with the numbers of the scheme.
        clipping: How far one record can move a batch's sum.
        normalization: What the noisy sum is divided by.
        mu: Certified ends of the least mu of Gaussian differential privacy.
        regret: What quoting mu alone gives away, an estimate (see `divergences.gdp`).
        set_aside: The probability but for which mu holds.
        curve: Certified interval of beta, an attacker's least false negative rate, by
            false positive rate.
        run: The run as the command line describes it, for `fdp-jax verify`; None where
            it has no words for it.
        notes: What no computation tells, by topic.
    """

    report: PrivacyReport
    unit: str
    sampler: str
    clipping: str
    normalization: str
    mu: tuple[float, float]
    regret: float
    set_aside: float
    curve: dict[float, Interval]
    run: dict[str, Any] | None
    notes: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form, which `receipt.schema.json` beside this module describes."""
        lower, upper = (json_ready(x) for x in self.mu)
        points = [{"alpha": a, "beta": b.to_dict()} for a, b in self.curve.items()]
        named = {"name": "fdp_jax", "version": self.report.versions["fdp_jax"]}
        return {
            "schema": SCHEMA,
            "command": "receipt",
            **self.report.to_dict(),
            "unit": self.unit,
            "sampler": self.sampler,
            "clipping": self.clipping,
            "normalization": self.normalization,
            "accountant": named,
            "mu": {
                "lower": lower,
                "upper": upper,
                "regret": self.regret,
                "delta": self.set_aside,
            },
            "curve": points,
            "run": self.run,
            "notes": dict(self.notes),
        }

    def markdown(self) -> str:
        """A section of a model card, by the topics of NIST SP 800-226."""
        report = self.report
        intervals = {
            f"epsilon at delta = {report.delta}": report.epsilon,
            "epsilon, with the record against without": report.epsilon_remove,
            "epsilon, without the record against with": report.epsilon_add,
            **{f"beta at alpha = {a:g}": beta for a, beta in self.curve.items()},
        }
        rows = {name: (x.lower, x.upper) for name, x in intervals.items()}
        rows[f"mu, but for a probability of {self.set_aside}"] = self.mu
        values = ", ".join(f"{k} = {v:.10g}" for k, v in report.parameters.items())
        made = ", ".join(f"{k} {v}" for k, v in report.versions.items())
        table = [
            f"| {name} | {round_down(lower)} | {round_up(upper)} |"
            for name, (lower, upper) in rows.items()
        ]
        written = [
            line
            for name, title in _NOTES.items()
            for line in ("", f"### {title}", "", self.notes.get(name, _UNSTATED))
        ]
        lines = [
            "## Differential privacy",
            "",
            f"{report.guarantee}. All bounds are certified, rounding included.",
            "",
            "### Privacy parameters",
            "",
            "| | at least | at most |",
            "| --- | --: | --: |",
            *table,
            "",
            "beta is the least false negative rate of an attack with false positive",
            f"rate alpha. No attack's TPR - FPR exceeds {round_up(report.advantage)}.",
            "",
            "### Unit of privacy",
            "",
            f"{self.unit}; neighbors: {report.relation}.",
            "",
            "### Algorithm and accounting",
            "",
            f"- Mechanism: {report.mechanism}, {values}",
            f"- Batches: {self.sampler}",
            f"- Clipping: {self.clipping}",
            f"- Normalization: {self.normalization}",
            f"- Accounted by {made}",
            "- Not covered: defects of floating-point noise and random generators.",
            *written,
        ]
        return "\n".join(lines) + "\n"


@explained
def receipt(
    subject: Plan | AbstractMechanism,
    *,
    delta: float,
    unit: str,
    notes: Mapping[str, str] | None = None,
) -> Receipt:
    """Everything about a training that is to be published beside its model.

    Args:
        subject: A plan, or a mechanism, of which clipping and normalization are then
            not stated.
        delta: Where epsilon is evaluated, in [0, 1]; mu sets delta / 1e5 aside.
        unit: What a record is, such as "one image" or "all messages of one user".
        notes: What no computation tells: any of "trust_model", "utility_and_bias",
            "data_security" and "data_collection", the other topics of the guidelines.

    Returns:
        The receipt, with `to_dict` for JSON and `markdown` for a model card.

    Guarantee:
        All intervals are certified; `regret` is an estimate.

    Raises:
        ValueError: If delta is outside [0, 1], unit is empty, or a note has another
            name.

    Example:
        >>> import fdp_jax as fdp
        >>> found = fdp.reports.receipt(fdp.Gaussian(2.0), delta=1e-5, unit="one image")
        >>> found.report.guarantee
        '(1.9931, 1e-05)-DP, add or remove one record, no subsampling'

    References:
        Near, Darais, Lefkovitz, Howarth (2025), NIST SP 800-226, for the topics; Gomez
        et al. (2025), arXiv:2503.10945, for mu and its regret.
    """
    words = "a dict of notes by topic, or None"
    notes = dict(_checks.instance("notes", notes or {}, Mapping, words))
    for name in notes:
        _checks.choice("notes", name, tuple(_NOTES))
    _checks.require(
        isinstance(unit, str) and unit.strip(),
        "unit must say what a record is",
        f"{unit!r}",
    )
    plan = subject if isinstance(subject, Plan) else None
    mechanism: Any = subject if plan is None else plan.mechanism
    report = privacy_report(mechanism, delta=delta)
    aside = report.delta / _ASIDE
    fitted = gdp(mechanism, delta=aside)
    return Receipt(
        report=report,
        unit=unit,
        sampler=_sampler(mechanism, report),
        clipping=_UNSTATED if plan is None else repr(plan.clipping),
        normalization=_UNSTATED if plan is None else _normalization(plan),
        mu=(float(fitted.mu_lower), float(fitted.mu)),
        regret=float(fitted.regret),
        set_aside=aside,
        curve={a: Interval.of(mechanism.bounds(alpha=a)) for a in _ALPHAS},
        run=_run(mechanism),
        notes=notes,
    )


_NOT_WHOLE = re.compile(r"\.\.\.|\d\[|<|traced")
"""What a printed mechanism cannot be read back with."""


def _normalization(plan: Plan) -> str:
    return (
        f"the noisy sum over {plan.expected_size:g}, the expected size of a batch of "
        f"{plan.num_records} records, a number taken as public"
    )


def _scheme(mechanism: Any) -> Any:
    """The scheme of a run, also where a probability stands for it."""
    scheme = getattr(mechanism, "sampling", None)
    if scheme is None and isinstance(mechanism, DPSGD):
        return Poisson(mechanism.sampling_prob)
    return scheme


def _sampler(mechanism: Any, report: PrivacyReport) -> str:
    """The drawing of batches, with the numbers of the scheme."""
    scheme = _scheme(mechanism)
    return report.sampling if scheme is None else f"{report.sampling}, {scheme!r}"


def _run(mechanism: Any) -> dict[str, Any] | None:
    """The argument of the command line that describes it, where there is one."""
    written = short(mechanism, most=10_000)
    # Entries of arrays are cut, and no file holds functions.
    return None if _NOT_WHOLE.search(written) else {"mechanism": written}


@explained
def require_words(mechanism: AbstractMechanism, document: Mapping[str, Any]) -> None:
    """Refuses a report or receipt in JSON whose words contradict its numbers.

    Args:
        mechanism: The mechanism that the document is about.
        document: The dictionary of a report or a receipt, as `to_dict` makes it.

    Raises:
        ValueError: If its guarantee, mechanism or assumptions, or the schema and the
            sampler of a receipt, are not those of the mechanism and of its epsilon.
        KeyError: If it states no epsilon or no delta.
    """
    report = written(mechanism, document)
    words = report.to_dict()
    wanted = {x: words[x] for x in ("guarantee", "mechanism", "assumptions")}
    if document.get("command") == "receipt":
        wanted |= {"schema": SCHEMA, "sampler": _sampler(mechanism, report)}
    for name, right in wanted.items():
        _checks.require(
            document.get(name) == right,
            f"the document's {name} must be that of its run, {right!r}",
            repr(document.get(name)),
        )
