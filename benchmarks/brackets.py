"""How often certified brackets are tight, and whether they are brackets.

Draws runs of DP-SGD far beyond the ordinary: noise 0.3 to 50, sampling probability
1e-5 to 1 and 1 to 10^6 steps, all log-uniform; delta from 1e-1 to 1e-250, its exponent
log-uniform; alpha, fpr and prior half uniform and half like delta.  Thresholds of delta
are the epsilons of other deltas, so that answers are not below the least number.  Every
run is asked every kind of question in every direction, and the table has the share of
answers that are LOOSE or VACUOUS, in percent, by kind and by the expected number of
participations q N.  Then it looks for false ends: brackets that cross (none may, and
the package is told not to mend them), brackets of the contour and the grid engine that
have nothing in common (`--engines` runs), and brackets without the value of the oracle
of fifty digits (`--oracle` questions of one direction; see `oracle.py`).

    python benchmarks/brackets.py --seed 1 --runs 300 [--kinds epsilon,delta] [--eager]

Under jit each question is one program for all runs, which is how training loops and
`vmap` ask; eagerly (`--eager`) the grid engine helps where the other one is loose.
"""

import argparse
import dataclasses
import itertools
import math
import sys
from collections.abc import Callable

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)


import fdp_jax as fdp  # noqa: E402
from fdp_jax.curves import _bounds  # noqa: E402

_bounds.MEND = False

KINDS = {
    "epsilon": "delta",
    "delta": "epsilon",
    "beta": "alpha",
    "tpr": "fpr",
    "bayes": "prior",
}
"""Questions, and the arguments of `bounds` that ask them."""
DIRECTIONS = "remove", "add", "both"
EDGES = 0.0, 0.1, 1.0, 10.0, math.inf
LOG_10 = math.log(10)


@dataclasses.dataclass
class Runs:
    """Parameters of some runs, and arguments of the questions put to them."""

    noise: np.ndarray
    prob: np.ndarray
    steps: np.ndarray
    args: dict[str, np.ndarray]
    """By kind; of "delta" another delta whose epsilon is asked for first."""

    def __len__(self) -> int:
        return self.noise.size


def draw(seed: int, count: int) -> Runs:
    """Some random runs; the first ones of a seed are the same for every count."""
    rows = []
    for index in range(count):
        g = np.random.default_rng([seed, index])
        noise = math.exp(g.uniform(math.log(0.3), math.log(50)))
        prob, steps = 10 ** g.uniform(-5, 0), math.floor(10 ** g.uniform(0, 6))
        tiny = lambda g=g: 10 ** -(10 ** g.uniform(0, math.log10(250)))
        rate = lambda g=g, tiny=tiny: g.uniform() if g.uniform() < 0.5 else tiny()
        rows.append([noise, prob, steps, tiny(), tiny(), rate(), rate(), rate()])
    noise, prob, steps, *args = np.asarray(rows).T
    return Runs(noise, prob, steps, dict(zip(KINDS, args, strict=True)))


def question(
    kind: str, direction: str, *, jit: bool, method: str = "auto"
) -> Callable[..., np.ndarray]:
    """A function of noise, probability, steps and argument.

    It gives lower end, estimate, upper end and status.
    """

    def bounds(noise, prob, steps, value):
        run = fdp.DPSGD(noise_multiplier=noise, sampling_prob=prob, num_steps=steps)
        view = run if direction == "both" else getattr(run, direction)
        view = view if method == "auto" else view.using(method)
        found = view.bounds(**{KINDS[kind]: value})
        return found.lower, found.estimate, found.upper, found.status

    ask = jax.jit(bounds) if jit else bounds
    return lambda *args: np.asarray([float(x) for x in ask(*args)])


def answers(runs: Runs, kind: str, direction: str, *, jit: bool) -> np.ndarray:
    """Rows of argument, lower end, estimate, upper end and status."""
    values = runs.args[kind]
    if kind == "delta":
        ask = question("epsilon", direction, jit=jit)
        found = [ask(*row)[1] for row in _rows(runs, values)]
        values = np.where(np.isfinite(found), found, 1.0)
        runs.args[f"delta {direction}"] = values
    ask = question(kind, direction, jit=jit)
    found = [ask(*row) for row in _rows(runs, values)]
    return np.column_stack([values, found])


def _rows(runs: Runs, values: np.ndarray):
    columns = runs.noise, runs.prob, runs.steps, values
    return [tuple(map(float, row)) for row in zip(*columns, strict=True)]


def table(runs: Runs, found: dict[tuple[str, str], np.ndarray]) -> str:
    """Shares of answers that are not tight, in percent."""
    spans = ["< .1", ".1 to 1", "1 to 10", "> 10"]
    size = runs.prob * runs.steps
    lines = [
        "| query | " + " | ".join(f"q N {span}" for span in spans) + " | all |",
        "|---|" + "--:|" * 5,
    ]
    for kind in dict.fromkeys(kind for kind, _ in found):
        every = [rows[:, 4] > 0 for (one, _), rows in found.items() if one == kind]
        loose, cells = np.stack(every), []
        for low, high in [*itertools.pairwise(EDGES), (0, math.inf)]:
            chosen = loose[:, (size >= low) & (size < high)]
            cells.append(f"{100 * chosen.mean():.1f}" if chosen.size else "")
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def crossed(rows: np.ndarray) -> np.ndarray:
    """Which brackets have ends that contradict each other, or are not numbers."""
    return ~(rows[:, 1] <= rows[:, 3])


def report(kind: str, direction: str, runs: Runs, index: int, text: str) -> None:
    """One failure, so that it can be looked into."""
    run = f"{runs.noise[index]!r}, {runs.prob[index]!r}, {int(runs.steps[index])}"
    print(f"FALSE {kind} {direction}: {run}: {text}", flush=True)


def compare_engines(
    runs: Runs, found: dict[tuple[str, str], np.ndarray], count: int
) -> int:
    """Brackets of the grid engine that have nothing in common with those found."""
    false = 0
    for (kind, direction), rows in found.items():
        ask = question(kind, direction, jit=False, method="grid")
        for index, run in enumerate(_rows(runs, rows[:, 0])[:count]):
            low, _, high, _ = ask(*run)
            # Both have been rounded.
            room = 4e-16 * max(1.0, abs(rows[index, 1]), abs(rows[index, 3]))
            room = 0.0 if kind in ("delta", "bayes") else room
            if low > rows[index, 3] + room or high < rows[index, 1] - room:
                false += 1
                text = f"grid {low!r} to {high!r}, other {rows[index].tolist()!r}"
                report(kind, direction, runs, int(index), text)
    return false


def ask_oracle(
    runs: Runs, found: dict[tuple[str, str], np.ndarray], count: int, seed: int
) -> tuple[int, int]:
    """Questions that converged, and brackets among them without the truth."""
    from oracle import Run

    g, converged, false = np.random.default_rng(seed), 0, 0
    keys = [key for key in found if key[1] != "both" and key[0] != "tpr"]
    for _ in range(count if keys else 0):
        kind, direction = keys[g.integers(len(keys))]
        index = int(g.integers(len(runs)))
        value, low, _, high, _ = found[kind, direction][index]
        run = Run(runs.noise[index], runs.prob[index], runs.steps[index], direction)
        inside = _holds(run, kind, value, low, high)
        converged += inside is not None
        if inside is False:
            false += 1
            report(kind, direction, runs, int(index), f"{value!r}: {low!r} to {high!r}")
    return converged, false


def _holds(run, kind: str, value: float, low: float, high: float):
    """Whether a bracket holds the truth; None where the oracle does not say."""
    if kind == "epsilon":
        # The truth lies between if delta does: no search for a root.
        target, ends = math.log(value), []
        for end, side in ((low, 1), (high, -1)):
            at = run.log_delta(end) if math.isfinite(end) else None
            if at is not None and at.converged:
                room = at.error + 3e-16 * (1 + abs(target))
                ends.append(side * (at.value - target) >= -room)
        return all(ends) if ends else None
    if kind == "bayes":
        truth = run.bayes_error(value)
        room = truth.error * (truth.value or 0) + 4e-16 * (truth.value or 0)
        truth = truth.value
    else:
        log = run.log_delta(value) if kind == "delta" else run.beta(value)
        truth = math.exp(log.value) if log.converged else None
        room = 0 if truth is None else truth * (log.error + 2e-16 * abs(log.value))
    if truth is None or (truth < 1e-300 and kind != "bayes"):
        return None
    return low <= truth + room and high >= truth - room


def main() -> None:
    """Draw, ask, count."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--directions", default=",".join(DIRECTIONS))
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--jit", dest="jit", action="store_true", default=True)
    way.add_argument("--eager", dest="jit", action="store_false")
    parser.add_argument("--engines", type=int, default=0)
    parser.add_argument("--oracle", type=int, default=0)
    parser.add_argument("--save", help="a .npz file of all runs and answers")
    options = parser.parse_args()
    runs, found = draw(options.seed, options.runs), {}
    false = 0
    for direction in options.directions.split(","):
        for kind in options.kinds.split(","):
            rows = answers(runs, kind, direction, jit=options.jit)
            found[kind, direction] = rows
            for index in np.flatnonzero(crossed(rows)):
                false += 1
                report(
                    kind, direction, runs, int(index), f"crossed {rows[index].tolist()}"
                )
            print(f"{direction} {kind}: {(rows[:, 4] > 0).sum()}", file=sys.stderr)
    print(table(runs, found))
    print(f"\n{false} of {sum(map(len, found.values()))} brackets cross.")
    if options.save:
        every = {" ".join(key): rows for key, rows in found.items()}
        columns = np.column_stack([runs.noise, runs.prob, runs.steps])
        np.savez(options.save, runs=columns, **every)
    if options.engines:
        apart = compare_engines(runs, found, options.engines)
        print(f"{apart} of {options.engines} runs' brackets contradict the grid's.")
        false += apart
    if options.oracle:
        converged, wrong = ask_oracle(runs, found, options.oracle, options.seed)
        print(f"{wrong} of {converged} brackets miss the oracle's value.")
        false += wrong
    sys.exit(min(false, 1))


if __name__ == "__main__":
    main()
