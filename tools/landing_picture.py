"""Draw the picture at the top of the README: python tools/landing_picture.py.

Left, what any attack on one DP-SGD run can reach; right, how far bounds of epsilon
are off. What dp-accounting says there is read in the table of `docs/benchmarks.md`,
which `benchmarks/against_dp_accounting.py` writes.
"""

import pathlib
import re

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

import fdp_jax as fdp

ROOT = pathlib.Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs/pictures/landing.svg"
OURS, THEIRS, PAIR = "#3949ab", "#c62828", "#757575"
LEAST_DELTA = 1e-20


def attacks(axes: Axes) -> None:
    """True positive rate at a false positive rate, of any attack."""
    run = fdp.DPSGD(noise_multiplier=1.1, sampling_prob=256 / 60_000, num_steps=14_062)
    fpr = np.geomspace(1e-6, 1.0, 200)
    epsilon = float(run.epsilon(delta=1e-5))
    pair = fdp.tradeoff.ApproxDP(epsilon=epsilon, delta=1e-5)
    known = np.asarray(run.curve().tpr(fpr=fpr))
    axes.fill_between(fpr, fpr, known, color=OURS, alpha=0.15, lw=0)
    axes.loglog(fpr, known, color=OURS, label="no attack does better")
    by_pair = np.asarray(pair.tpr(fpr=fpr))
    label = f"as far as ({epsilon:.2f}, 1e-5)-DP tells"
    axes.loglog(fpr, by_pair, color=PAIR, ls="--", label=label)
    axes.loglog(fpr, fpr, color="black", lw=0.8, label="guessing")
    axes.set(xlabel="false positive rate", ylabel="true positive rate")
    axes.set(xlim=(1e-6, 1), ylim=(1e-6, 1.5))
    axes.set_title("DP-SGD, noise 1.1, 60 epochs of MNIST", fontsize=10)
    axes.legend(frameon=False, fontsize=8, loc="upper left")


def _table() -> np.ndarray:
    """Delta, truth, dp-accounting's bound and ours."""
    text = (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8")
    table = re.findall(r"<!-- safety -->(.*?)<!-- end", text, flags=re.DOTALL)[0]
    rows = [x.split("|")[1:5] for x in table.splitlines() if x.startswith("| 1e-")]
    number = lambda cell: float(cell.split()[0])
    return np.array([[number(cell) for cell in row] for row in rows])


def small_deltas(axes: Axes) -> None:
    """By how much bounds of epsilon exceed the truth, against delta."""
    delta, truth, theirs, ours = _table().T
    shown = delta >= LEAST_DELTA
    delta, truth, theirs, ours = (x[shown] for x in (delta, truth, theirs, ours))
    finite = np.isfinite(theirs)
    small = finite & (theirs < truth)
    ends, last = delta[~finite].max(), LEAST_DELTA / 1e5
    for at, marker, label in (
        (finite & ~small, "o", "dp-accounting 0.6.0"),
        (small, "v", "the same, too small"),
    ):
        excess = theirs[at] - truth[at]
        axes.plot(delta[at], excess, color=THEIRS, ls="", marker=marker, label=label)
    axes.axvspan(last, ends, color=THEIRS, alpha=0.08, lw=0)
    axes.text(ends / 3, 1e-2, "the same:\ninfinite", fontsize=8, color=THEIRS)
    line = np.append(delta, last), np.append(ours - truth, 0.0)
    axes.plot(*line, color=OURS, marker="o", ms=3, label="fdp_jax (down to 1e-200)")
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=1e-5)
    axes.set_yticks([-1, -1e-2, -1e-4, 0, 1e-4, 1e-2, 1])
    axes.set(xlabel="delta", ylabel="bound of epsilon, less the truth")
    axes.set(xlim=(1e-4, last), ylim=(-3, 3e4))
    axes.set_title("DP-SGD, noise 1, 10,000 steps of 1 %", fontsize=10)
    axes.legend(frameon=False, fontsize=8, loc="upper left")


def main() -> None:
    """Draw both and write the picture."""
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "fdp_jax"  # the same file each time
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.0, 3.4), layout="constrained")
    attacks(left)
    small_deltas(right)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, metadata={"Date": None})


if __name__ == "__main__":
    main()
