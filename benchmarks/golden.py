"""Answers of all mechanisms to all queries, kept to be compared after a change.

    python benchmarks/golden.py write before.json [part of the names]
    python benchmarks/golden.py compare before.json after.json

An engine may be replaced if no bracket leaves an old one, estimates of tight answers
stay (to 1e-9 where delta is at least 1e-30), and no answer stops being tight.
"""

import json
import math
import sys
import time
import warnings
from collections.abc import Iterator

import jax
import numpy as np

import fdp_jax as fdp

SIDES = ("both", "remove", "add")
QUERIES = {
    "delta": ("epsilon", (-0.4, 0.3, 1.0, 4.0, 20.0)),
    "epsilon": ("delta", (0.2, 1e-2, 1e-5, 1e-10, 1e-25)),
    "beta": ("alpha", (1e-8, 0.01, 0.4)),
}


def mechanisms() -> Iterator[tuple[str, fdp.AbstractMechanism]]:
    """Names, each an expression with what is imported here, and what they say."""
    one = fdp.NeighboringRelation.REPLACE_ONE
    names = {"fdp": fdp, "one": one, "s": fdp.sampling, "np": np}
    expressions = [
        *(f"fdp.Gaussian({x})" for x in (0.05, 0.7, 3.0, 250.0)),
        *(f"fdp.Gaussian({x}).repeat({n})" for x, n in ((2.0, 4), (50.0, 1e5))),
        *(f"fdp.Laplace({x})" for x in (0.2, 1.0, 30.0)),
        *(f"fdp.Laplace({x}).repeat({n})" for x, n in ((2.0, 3), (10.0, 100))),
        *(f"fdp.Logistic({x})" for x in (0.3, 2.0)),
        "fdp.Logistic(4.0).repeat(10)",
        *(
            f"fdp.DPSGD(noise_multiplier={x}, sampling_prob={q}, num_steps={n})"
            for x, q, n in (
                (0.6, 1e-6, 1e5),
                (0.3, 1e-3, 50),
                (1.0, 0.01, 1),
                (5.0, 0.5, 1),
                (1.0, 0.1, 3),
                (0.6, 1e-3, 1e4),
                (1.0, 0.01, 1000),
                (4.0, 0.2, 2e4),
                (20.0, 0.01, 1e6),
                (1.0, 1.0, 7),
                (0.8, 0.02, 2.5),
                (1e4, 0.01, 480),
            )
        ),
        *(
            f"fdp.DPSGD(noise_multiplier={x}, sampling_prob={q}, num_steps={n}, "
            "relation=one)"
            for x, q, n in ((0.6, 1e-3, 1e4), (1.0, 0.1, 1), (2.0, 0.05, 400))
        ),
        "fdp.DPSGD(noise_multiplier=1.0, sampling_prob=.02, num_steps=100).group(3)",
        "fdp.DPSGD(noise_multiplier=2.0, sampling=s.FixedSize(batch_size=50, "
        "dataset_size=1000), num_steps=200, relation=one)",
        "fdp.DPSGD(noise_multiplier=3.0, sampling=s.RandomAllocation(num_batches=10), "
        "num_steps=40)",
        *(f"fdp.RandomizedResponse({x})" for x in (0.5, 4.0)),
        "fdp.RandomizedResponse(0.3).repeat(60)",
        "fdp.KaryRandomizedResponse(1.0, num_categories=5).repeat(3)",
        *(f"fdp.PureDP({x})" for x in (0.1, 3.0)),
        "fdp.PureDP(0.2).repeat(50)",
        "fdp.ApproxDP(epsilon=0.5, delta=1e-6).repeat(20)",
        *(f"fdp.DiscreteGaussian({x}, sensitivity=1)" for x in (0.5, 4.0)),
        "fdp.DiscreteGaussian(3.0).repeat(30)",
        "fdp.DiscreteLaplace(2.0).repeat(5)",
        *(f"fdp.ExponentialMechanism({x})" for x in (0.4, 3.0)),
        "fdp.ExponentialMechanism(0.3).repeat(40)",
        "fdp.PermuteAndFlip(0.7).repeat(4)",
        "fdp.ReportNoisyMax(3.0).repeat(4)",
        "fdp.AboveThreshold(4.0, num_above=3).repeat(5)",
        "fdp.Skellam(3.0, sensitivity=2).repeat(10)",
        "fdp.DistributedDiscreteGaussian(2.5, num_shares=6).repeat(10)",
        "fdp.LastIterate(10.0, contraction=0.9, num_steps=100)",
        "fdp.Staircase(1.0, gamma=0.3).repeat(2)",
        "fdp.Tulap(0.8, delta=1e-4)",
        "fdp.GeneralizedGaussian(1.5, shape=1.4).repeat(3)",
        "fdp.MixtureOfGaussians(1.2, shifts=[0.0, 0.5, 1.0], probs=[0.9, 0.06, 0.04])",
        "fdp.MixtureOfGaussians(1.2, shifts=[0.0, 0.5, 1.0], probs=[0.9, 0.06, 0.04])"
        ".repeat(300)",
        "fdp.PoissonMechanism(20.0, 1.0).repeat(4)",
        "fdp.SubordinatedGaussian(2.0, 3.0)",
        "fdp.LevyTriplet(0.2, jumps=[0.4, -0.3], rates=[0.5, 0.2], num_steps=3)",
        *(
            f"fdp.PoissonSubsampled({x}, {q}).repeat({n})"
            for x, q, n in (
                ("fdp.Laplace(1.0)", 0.1, 20),
                ("fdp.PureDP(1.0)", 0.05, 100),
                ("fdp.RandomizedResponse(2.0, relation='add_or_remove_one')", 0.2, 5),
            )
        ),
        "fdp.FromProbabilities([0.5, 0.3, 0.2, 0.0], [0.3, 0.4, 0.2, 0.1]).repeat(6)",
        "fdp.FromTradeOffPoints([0.0, 0.2, 1.0], [0.9, 0.3, 0.0])",
        "fdp.MatrixMechanism(1.5, [1.0, 0.5, 0.2], num_steps=12, max_participations=3,"
        " min_separation=4)",
        "fdp.compose(fdp.Gaussian(3.0), fdp.Laplace(2.0), fdp.PureDP(0.2))",
        "fdp.compose(fdp.Gaussian(3.0), fdp.DPSGD(noise_multiplier=1.0, "
        "sampling_prob=.01, num_steps=500))",
        "fdp.ZCDP(0.1)",
        "fdp.RenyiDP([2.0, 8.0, 32.0], [0.1, 0.5, 2.2])",
    ]
    for text in expressions:
        yield text, eval(text, names)  # a table of ours


def _number(x: jax.Array) -> float:
    return float(np.asarray(x))


def answers(part: str) -> Iterator[dict]:
    """Both ends and the estimate of each answer, or what kept it from being one."""
    for name, mechanism in mechanisms():
        if part not in name:
            continue
        start, count = time.process_time(), 0
        for side in SIDES:
            view = mechanism if side == "both" else getattr(mechanism, side, None)
            if view is None:  # a guarantee without directions
                continue
            for query, (argument, values) in QUERIES.items():
                for value in values:
                    row = {"of": name, "side": side, "query": query, "at": value}
                    try:
                        found = view.bounds(**{argument: value})
                        row["ends"] = [
                            _number(x)
                            for x in (found.lower, found.estimate, found.upper)
                        ]
                        row["tight"] = bool(np.all(found.status == fdp.Status.TIGHT))
                    except (TypeError, ValueError, NotImplementedError) as error:
                        row["error"] = type(error).__name__
                    count += 1
                    yield row
        spent = time.process_time() - start
        print(f"{spent:7.1f} CPU s, {count} answers: {name}", file=sys.stderr)


def write(path: str, part: str = "") -> None:
    """Keeps all answers in a file of JSON lines, or those of some mechanisms."""
    warnings.simplefilter("ignore")
    jax.config.update("jax_enable_x64", True)  # to see the digits that are compared
    with open(path, "w", encoding="utf-8") as file:
        for row in answers(part):
            print(json.dumps(row), file=file, flush=True)


def _load(path: str) -> dict[tuple, dict]:
    with open(path, encoding="utf-8") as file:
        rows = map(json.loads, file)
        return {(r["of"], r["side"], r["query"], r["at"]): r for r in rows}


def _distance(a: float, b: float) -> float:
    return 0.0 if a == b else abs(a - b) / max(abs(a), abs(b), 1e-300)


def compare(before: str, after: str) -> None:
    """Prints every answer that is disjoint, less tight, or elsewhere, and counts."""
    old, new = _load(before), _load(after)
    counts = dict.fromkeys(("same", "disjoint", "lost", "gained", "moved"), 0)
    for key in [key for key in old if key in new]:
        one, other = old[key], new[key]
        if "ends" not in one or "ends" not in other:
            kind = "same" if one.get("error") == other.get("error") else "lost"
        else:
            (low, mid, up), (low2, mid2, up2) = one["ends"], other["ends"]
            # Where a bracket is narrower than its numbers' last digits.
            finite = [abs(x) for x in (low, up2, low2, up) if x < math.inf]
            slack = 1e-14 * max(finite, default=0.0)
            small = key[2] == "delta" and mid < 1e-30
            small = small or (key[2] == "epsilon" and key[3] < 1e-30)
            moved = one["tight"] and not small and _distance(mid, mid2) > 1e-9
            kind = "moved" if moved else "same"
            if one["tight"] != other["tight"]:
                kind = "lost" if one["tight"] else "gained"
            if low > up2 + slack or low2 > up + slack or not low2 <= up2:
                kind = "disjoint"
        counts[kind] += 1
        if kind not in ("same", "gained"):
            print(kind, key, one.get("ends", one), other.get("ends", other))
    print(counts, f"{len(old.keys() ^ new.keys())} in one file only")


if __name__ == "__main__":
    {"write": write, "compare": compare}[sys.argv[1]](*sys.argv[2:])
