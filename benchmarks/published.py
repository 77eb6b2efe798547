"""Published epsilons, recomputed: the tables of docs/published.md.

    python benchmarks/published.py

writes them into the page, between its marks. Runs of DP-SGD are those of
`fdp_jax.data`; other releases, and claims of which no parameters are published, stand
below, with their sources.
"""

import math
import pathlib
import warnings
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any, NamedTuple

import fdp_jax as fdp
from fdp_jax.data import PublishedRun, published_runs
from fdp_jax.reports import round_down, round_up

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs" / "published.md"
ASIDE = 1e-10
"""Probability set aside in mu: without it sampling would not count."""
_DIGITS = 4
_SAME = 5e-3
"""How far apart two epsilons may be, relatively, to be called the same."""
_CENSUS = (
    "https://github.com/uscensusbureau/DAS_2020_Redistricting_Production_Code/tree/"
    "289ee463936a6f0efcf2e378abe410ec01d0e140/docs/certificates"
)
_GBOARD = (
    "https://github.com/google-research/federated/blob/"
    "29cf01e109140a670966a7d20ca7f11c4114cb4c/dp_ftrl/"
    "blogpost_supplemental_privacy_accounting.ipynb"
)
_LIST = "https://desfontain.es/blog/real-world-differential-privacy.html"


class Release(NamedTuple):
    """What is known of a release that is no run of DP-SGD."""

    name: str
    url: str
    mechanism: Any
    stated: str
    delta: float
    claimed: float


RELEASES = (
    Release(
        "US Census 2020, redistricting, persons",
        _CENSUS,
        fdp.ZCDP(float(Fraction(293764, 114921))),
        "rho = 293764/114921",
        1e-10,
        17.14,
    ),
    Release(
        "US Census 2020, redistricting, housing units",
        _CENSUS,
        fdp.ZCDP(float(Fraction(11417641, 152349649))),
        "rho = 11417641/152349649",
        1e-10,
        2.47,
    ),
    # The notebook prints rho = squared sensitivity / (2 * 7^2) as 0.81, and squared
    # sensitivities of a tree are whole numbers.
    Release(
        "Gboard, Spanish, next word (DP-FTRL)",
        _GBOARD,
        fdp.Gaussian(7 / math.sqrt(79)),
        "a tree, noise 7, 2000 rounds, 6 participations",
        1e-10,
        8.90,
    ),
)
CLAIMS = (
    ("Apple, Health types, a user's day", _LIST, 2.0, 0.0),
    ("Apple, emoji, a user's day", _LIST, 4.0, 0.0),
    ("Apple, QuickType, a user's day", _LIST, 16.0, 0.0),
    (
        "Google, COVID-19 search trends, a user's day",
        "https://arxiv.org/abs/2009.01265",
        1.68,
        0.0,
    ),
    (
        "Google, vaccination search insights, a user's day",
        "https://arxiv.org/abs/2107.01179",
        2.19,
        1e-5,
    ),
    (
        "VaultGemma 1B, a sequence of 1024 tokens",
        "https://huggingface.co/docs/transformers/model_doc/vaultgemma",
        2.0,
        1.1e-10,
    ),
)


def mechanism(run: PublishedRun) -> fdp.DPSGD:
    """The run, with the Poisson sampling of its claim."""
    return fdp.DPSGD(
        noise_multiplier=run.noise_multiplier,
        sampling_prob=run.sampling_prob,
        num_steps=run.num_steps,
    )


def shuffled(run: PublishedRun) -> fdp.DPSGD | None:
    """The run with the batches it used, if these are a partition of an epoch."""
    if run.epochs is None or not run.sampling_in_practice.startswith("shuffled"):
        return None
    batches = run.dataset_size // run.batch_size
    return fdp.DPSGD(
        noise_multiplier=run.noise_multiplier,
        sampling=fdp.sampling.ShuffledEpochs(batches),
        num_steps=batches * run.epochs,
        relation="zero_out",
    )


def mu(subject: Any) -> str:
    """The least certified mu, but for `ASIDE`."""
    return _up(fdp.divergences.gdp(subject, delta=ASIDE).mu)


def runs(mu: Callable[[Any], str] = mu) -> str:
    """The table of runs of DP-SGD."""
    head = (
        *("run", "noise, rate, steps", "delta", "theirs", "remove", "add"),
        *("mu", "TPR", "advantage", "theirs is"),
    )
    return _table(head, (_run(run, mu) for run in published_runs()))


def _run(run: PublishedRun, mu: Callable[[Any], str]) -> tuple[str, ...]:
    subject = mechanism(run)
    remove = _both_ends(subject.remove, run.delta)
    add = _both_ends(subject.add, run.delta)
    return (
        f"[{run.name}]({run.url})",
        f"{run.noise_multiplier:.6g}, {run.batch_size}/{run.dataset_size}, "
        f"{run.num_steps}",
        _small(run.delta),
        f"{run.claimed_epsilon:g}",
        _up(remove),
        _up(add),
        mu(subject),
        *_attack(subject),
        _verdict(run.claimed_epsilon, max(remove, add)),
    )


def batches() -> str:
    """The table of runs whose batches were another partition in every epoch."""
    head = "run", "theirs", "by Poisson sampling", "at least", "at most"
    return _table(head, (row for run in published_runs() for row in _batches(run)))


def _batches(run: PublishedRun) -> Iterable[tuple[str, ...]]:
    used = shuffled(run)
    if used is not None:
        found = used.bounds(delta=run.delta)
        yield (
            run.name,
            f"{run.claimed_epsilon:g}",
            _up(_both_ends(mechanism(run), run.delta)),
            round_down(float(found.lower), _DIGITS),
            _up(found.upper),
        )


def releases(mu: Callable[[Any], str] = mu) -> str:
    """The table of other releases."""
    head = (
        *("release", "stated", "delta", "theirs", "ours", "mu", "TPR"),
        *("advantage", "theirs is"),
    )
    return _table(head, (_release(release, mu) for release in RELEASES))


def _release(release: Release, mu: Callable[[Any], str]) -> tuple[str, ...]:
    name, url, subject, stated, delta, claimed = release
    epsilon = float(subject.epsilon(delta=delta))
    known = isinstance(subject, fdp.ZCDP)
    return (
        f"[{name}]({url})",
        stated,
        _small(delta),
        f"{claimed:g}",
        _up(epsilon),
        "none" if known else mu(subject),
        *_attack(subject),
        _verdict(claimed, epsilon),
    )


def claims() -> str:
    """The table of claims: what an attacker can do, if they hold."""
    rows = (
        (
            f"[{name}]({url})",
            f"{epsilon:g}, {_small(delta)}",
            *_attack(fdp.ApproxDP(epsilon=epsilon, delta=delta)),
        )
        for name, url, epsilon, delta in CLAIMS
    )
    return _table(("release", "epsilon, delta", "TPR", "advantage"), rows)


def _both_ends(subject: Any, delta: float) -> float:
    """The upper end, after a look at the lower one."""
    found = subject.bounds(delta=delta)
    lower, upper = float(found.lower), float(found.upper)
    assert lower >= upper - 1e-6 * abs(upper), f"{subject} is not tight"
    return upper


def _attack(subject: Any) -> tuple[str, str]:
    return _up(subject.tpr(fpr=0.01)), _up(subject.advantage())


def _verdict(claimed: float, epsilon: float) -> str:
    off = claimed / epsilon - 1
    if abs(off) < _SAME:
        return "right"
    return f"{'above' if off > 0 else 'below'} by {abs(off):.0%}"


def _small(delta: float) -> str:
    """The number as one writes it."""
    return f"{delta:g}".replace("e-0", "e-")


def _up(value: Any) -> str:
    return round_up(float(value), _DIGITS)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    numbers = "--:" if len(head) < 6 else "---"
    lines = [head, ("---", *[numbers] * (len(head) - 1)), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


TABLES = {"runs": runs, "batches": batches, "releases": releases, "claims": claims}


def parts(text: str, name: str) -> tuple[str, str, str]:
    """The text before, within and after the marks of a table."""
    before, start, rest = text.partition(f"<!-- {name} -->\n\n")
    table, end, after = rest.partition(f"\n\n<!-- end of {name} -->")
    assert start
    assert end
    return before + start, table, end + after


def main() -> None:
    """Write all tables into the page."""
    warnings.simplefilter("ignore", fdp.LooseBoundWarning)
    text = PAGE.read_text(encoding="utf-8")
    for name, table in TABLES.items():
        before, _, after = parts(text, name)
        text = before + table() + after
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
