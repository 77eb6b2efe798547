"""Recompute published DP-SGD runs: guarantee, calibrated noise, picture."""

import argparse
import importlib.util
import json
import pathlib
import time
from typing import Any

import jax

from .. import calibration, mechanisms, plot, reports
from ..data import PublishedRun, published_runs
from ._options import OK
from ._output import Output

_SHOWN = "tf-privacy-mnist-eps3"


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Recompute the runs; the exit status."""
    demo(pathlib.Path(arguments.output))
    return OK


def demo(folder: pathlib.Path) -> None:
    """Print the table and one report; write `report.json` and `tradeoff.png`.

    There is no picture where matplotlib is missing.

    Args:
        folder: Where the two files go; made if it does not exist.
    """
    folder.mkdir(parents=True, exist_ok=True)
    runs = published_runs()
    print("Compiling (the first time takes a while) ...", flush=True)
    started = time.perf_counter()
    _recompute(runs[0])
    compiling = time.perf_counter() - started
    rows = [_recompute(run) for run in runs]

    shown = next(run for run in runs if run.id == _SHOWN)
    mechanism = _mechanism(shown)
    report = reports.privacy_report(mechanism, delta=shown.delta)
    lines = [
        f"done in {compiling:.1f} s.\n",
        "Published DP-SGD runs, recomputed (Poisson sampling, add or remove one):\n",
        _table(rows),
        "\ncertified: upper bound of epsilon at the noise used; needed: least noise",
        "multiplier that certifies the claim; ms: time for each of the two. Sources,",
        "with the numbers as they stand there, are in report.json:",
        *(f"  {url}" for url in dict.fromkeys(row["url"] for row in rows)),
        f"\nIn full, {shown.name}:\n\n{report.text()}",
    ]
    print("\n".join(lines))
    document = {
        "runs": rows,
        "report": {"name": shown.name} | report.to_dict(),
        "versions": reports.versions(),
    }
    path = folder / "report.json"
    path.write_text(
        json.dumps(document, indent=2, allow_nan=False) + "\n", encoding="utf-8"
    )
    picture = folder / "tradeoff.png"
    print(f"\nWritten: {path}")
    if importlib.util.find_spec("matplotlib") is None:
        print("No picture: it needs matplotlib; install fdp-jax with the extra 'plot'")
        return
    plot.save(mechanism, picture, title=shown.name)
    print(f"Written: {picture}")


def _mechanism(run: PublishedRun) -> mechanisms.DPSGD:
    return mechanisms.DPSGD(
        noise_multiplier=run.noise_multiplier,
        sampling_prob=run.sampling_prob,
        num_steps=run.num_steps,
    )


def _recompute(run: PublishedRun) -> dict[str, Any]:
    started = time.perf_counter()
    bounds = jax.block_until_ready(_mechanism(run).bounds(delta=run.delta))
    accounted = time.perf_counter()
    found = calibration.calibrate(
        mechanisms.DPSGD(sampling_prob=run.sampling_prob, num_steps=run.num_steps),
        calibration.targets.ApproxDP(epsilon=run.claimed_epsilon, delta=run.delta),
        solve_for="noise_multiplier",
    )
    needed = float(found.value)
    calibrated = time.perf_counter()
    return {
        "id": run.id,
        "name": run.name,
        "noise_multiplier": run.noise_multiplier,
        "sampling_prob": run.sampling_prob,
        "num_steps": run.num_steps,
        "delta": run.delta,
        "claimed_epsilon": run.claimed_epsilon,
        "claimed_by": run.claimed_by,
        "epsilon": reports.Interval.of(bounds).to_dict(),
        "noise_multiplier_for_claim": needed,
        "epsilon_milliseconds": 1e3 * (accounted - started),
        "calibration_milliseconds": 1e3 * (calibrated - accounted),
        "source": run.source,
        "url": run.url,
    }


def _table(rows: list[dict[str, Any]]) -> str:
    head = (
        *("run", "delta", "claimed", "certified", "ms"),
        *("noise used", "needed", "ms"),
    )
    body = [
        (
            row["name"],
            f"{row['delta']:g}",
            f"{row['claimed_epsilon']:g}",
            reports.round_up(float(row["epsilon"]["upper"]), 6),
            f"{row['epsilon_milliseconds']:.1f}",
            f"{row['noise_multiplier']:g}",
            reports.round_up(row["noise_multiplier_for_claim"], 6),
            f"{row['calibration_milliseconds']:.1f}",
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    lines = [
        "  ".join(
            [
                line[0].ljust(widths[0]),
                *(x.rjust(w) for x, w in zip(line[1:], widths[1:], strict=True)),
            ]
        )
        for line in [head, *body]
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])
