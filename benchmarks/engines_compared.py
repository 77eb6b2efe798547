"""Two engines asked the same questions: do their brackets meet, and how tight are they?

Random runs of DP-SGD (noise .3 to 50, rate 1e-5 to 1, 1 to 10^6 steps, delta 1e-30 to
.1), or with `--replace` of REPLACE_ONE.  Prints, by expected participations, the share
of TIGHT answers of both engines, the number of brackets that are disjoint (there must
be none), and the largest difference of estimates where both are TIGHT.

    python benchmarks/engines_compared.py [--runs 300] [--seed 0] [--replace]
"""

import argparse
import itertools
import time

import jax
import numpy as np

import fdp_jax as fdp

EDGES = [0, 0.1, 1, 10, 100, 1000, np.inf]


def main() -> None:
    """Asks both engines and prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engines", default="contour,grid")
    parser.add_argument("--replace", action="store_true")
    parser.add_argument("--show", action="store_true", help="print what is loose")
    asked = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    engines = asked.engines.split(",")
    relation = (
        fdp.NeighboringRelation.REPLACE_ONE
        if asked.replace
        else fdp.NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    rng = np.random.default_rng(asked.seed)
    rows, seconds = [], dict.fromkeys(engines, 0.0)
    for _ in range(asked.runs):
        noise = float(np.exp(rng.uniform(np.log(0.3), np.log(50))))
        rate = float(np.exp(rng.uniform(np.log(1e-5), 0)))
        steps = float(np.round(np.exp(rng.uniform(0, np.log(1e6)))))
        delta = float(np.exp(rng.uniform(np.log(1e-30), np.log(0.1))))
        run = fdp.DPSGD(
            noise_multiplier=noise,
            sampling_prob=rate,
            num_steps=steps,
            relation=relation,
        )
        found = []
        for name in engines:
            began = time.process_time()
            found.append(run.using(name).bounds(delta=delta))
            seconds[name] += time.process_time() - began
        ends = [(float(x.lower), float(x.estimate), float(x.upper)) for x in found]
        apart = max(x[0] for x in ends) > min(x[2] for x in ends)
        tight = [x.status == fdp.Status.TIGHT for x in found]
        if asked.show and tight[1] and not tight[0]:
            print("loose", noise, rate, steps, delta, ends)
        if apart:
            print("disjoint", noise, rate, steps, delta, ends)
        off = abs(ends[0][1] - ends[1][1]) / max(abs(ends[1][1]), 1e-12)
        rows.append((rate * steps, *tight, apart, off if all(tight) else 0.0))
    table = np.array(rows, float)
    print("participations  runs ", *engines, " disjoint  largest difference")
    for low, high in itertools.pairwise(EDGES):
        part = table[(table[:, 0] >= low) & (table[:, 0] < high)]
        if part.size:
            shares = " ".join(f"{x:.3f}" for x in part[:, 1:3].mean(axis=0))
            last = f"{int(part[:, 3].sum())}  {part[:, 4].max():.1e}"
            print(f"{low:g} to {high:g}: {len(part)}  {shares}  {last}")
    print(
        {name: round(x, 1) for name, x in seconds.items()}, "CPU s, compiling included"
    )


if __name__ == "__main__":
    main()
