"""Arguments of the command line."""

import argparse
import importlib.metadata
import sys
from typing import Any, NoReturn

from ._scheme import SCHEMES

_NUMBERS = {
    "--batch-size": "size of a batch, or the largest that is kept",
    "--dataset-size": "number of records",
    "--num-batches": "batches of an epoch",
    "--num-groups": "groups of records that take turns",
    "--max-examples": "most examples of one user",
}
_RELATIONS = "add-or-remove-one", "replace-one", "zero-out"
SOLVABLE = ("noise_multiplier", "sampling_prob", "num_steps")


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, with exit status 2.

    Abbreviations are refused: a script with one would break with the next option.
    """

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **{"allow_abbrev": False} | options)

    def error(self, message: str) -> NoReturn:
        """Print the message and leave."""
        print(f"{self.prog}: error: {message}", file=sys.stderr)
        sys.exit(2)


def number(text: str) -> float:
    """A number, or a ratio such as 256/60000."""
    top, slash, bottom = text.replace("_", "").partition("/")
    try:
        return float(top) / float(bottom) if slash else float(top)
    except (ValueError, ZeroDivisionError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no number (a ratio such as 256/60000 is one)"
        ) from None


def build_parser() -> Parser:
    """The parser with all commands."""
    parser = Parser(
        prog="fdp-jax",
        description="Certified privacy accounting and calibration of DP-SGD.",
        epilog="Exit status: 0 answered, 2 bad usage or values, 3 target unreachable "
        "or only a vacuous bound. Compiled programs are kept in the user's cache "
        "folder; FDP_JAX_CACHE moves that, or switches it off.",
    )
    version = importlib.metadata.version("fdp-jax")
    parser.add_argument("--version", action="version", version=f"fdp-jax {version}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    epsilon = commands.add_parser("epsilon", help="epsilon at one or more deltas")
    _add_run(epsilon, required=True)
    _add_delta(epsilon, required=True, nargs="+")
    _add_outputs(epsilon)

    delta = commands.add_parser("delta", help="delta at one or more epsilons")
    _add_run(delta, required=True)
    _add_epsilon(delta, required=True, nargs="+")
    _add_outputs(delta)

    calibrate = commands.add_parser(
        "calibrate",
        help="find the noise, sampling probability or number of steps for a target",
        description="Give the two other parameters of the run and one target: "
        "--epsilon with --delta, or --alpha with --beta, or --advantage.",
    )
    _add_run(calibrate, required=False)
    calibrate.add_argument(
        "--solve-for",
        choices=SOLVABLE,
        default="noise_multiplier",
        type=lambda text: text.replace("-", "_"),
        help="parameter to find (default: noise_multiplier)",
    )
    _add_epsilon(calibrate, required=False)
    _add_delta(calibrate, required=False)
    calibrate.add_argument(
        "--alpha",
        type=number,
        help="false positive rate of the attack to be excluded, in (0, 1)",
    )
    calibrate.add_argument(
        "--beta",
        type=number,
        help="false negative rate that any attack at --alpha shall have at least",
    )
    calibrate.add_argument(
        "--advantage",
        type=number,
        help="largest admissible TPR - FPR of any attack, in (0, 1)",
    )
    calibrate.add_argument(
        "--whole",
        action="store_true",
        help="find a whole number, such as of steps",
    )
    _add_outputs(calibrate)

    report = commands.add_parser("report", help="everything about one run, to publish")
    _add_run(report, required=True)
    _add_delta(report, required=True)
    _add_outputs(report)

    compare = commands.add_parser(
        "compare",
        help="which of two runs is more private, and against whom",
        description="The other run is the same but for what --other-... says of it.",
    )
    _add_run(compare, required=True)
    _add_run(compare, required=False, prefix="other-")
    _add_json(compare)

    verify = commands.add_parser(
        "verify",
        help="compute an answer again, by another engine and by dp-accounting",
        description="Reads a file that epsilon, delta, calibrate or report has written "
        "with --json. Exit status 3 if a bound in it is contradicted.",
    )
    verify.add_argument("file", metavar="FILE", help="the JSON file")
    _add_json(verify)

    demo = commands.add_parser(
        "demo", help="recompute published DP-SGD runs and calibrate them"
    )
    demo.add_argument(
        "--output",
        metavar="DIR",
        default="demo",
        help="folder for report.json and tradeoff.png (default: demo)",
    )
    sweep = commands.add_parser(
        "sweep",
        help="ask the same about many configurations",
        description="The file names a mechanism, a grid or columns of configurations, "
        "and queries. A sweep that was stopped goes on.",
    )
    sweep.add_argument("file", metavar="FILE", help="what to do, in TOML")
    sweep.add_argument(
        "--out", metavar="DIR", required=True, help="folder for the results"
    )
    sweep.add_argument(
        "--plot", metavar="FILE", help="draw the first answer over two axes"
    )
    sweep.add_argument("--quiet", action="store_true", help="no progress bar")

    completion = commands.add_parser(
        "completion", help="completions for a shell, to be sourced by it"
    )
    completion.add_argument("shell", choices=("bash", "zsh", "tcsh"))
    return parser


def _add_run(parser: Parser, *, required: bool, prefix: str = "") -> None:
    """The description of a run; without defaults where it is that of another one."""
    parser.add_argument(
        f"--{prefix}noise-multiplier",
        type=number,
        required=required,
        metavar="SIGMA",
        help="standard deviation of the noise over the clipping norm (no unit), > 0",
    )
    parser.add_argument(
        f"--{prefix}sampling",
        choices=tuple(SCHEMES),
        default=None if prefix else "poisson",
        help="how batches are drawn (default: poisson)",
    )
    parser.add_argument(
        f"--{prefix}sampling-prob",
        type=number,
        metavar="Q",
        help="probability that a record is in a batch, in [0, 1]; 256/60000 is fine",
    )
    for name, meaning in _NUMBERS.items():
        parser.add_argument(
            name.replace("--", f"--{prefix}"), type=int, metavar="K", help=meaning
        )
    parser.add_argument(
        f"--{prefix}relation",
        choices=_RELATIONS,
        default=None if prefix else "add-or-remove-one",
        help="which data sets are neighbors (default: add-or-remove-one)",
    )
    parser.add_argument(
        f"--{prefix}num-steps",
        type=number,
        required=required,
        metavar="N",
        help="number of noisy updates, >= 0",
    )


def _add_delta(parser: Parser, *, required: bool, nargs: str | None = None) -> None:
    parser.add_argument(
        "--delta",
        type=number,
        required=required,
        nargs=nargs,
        help="probability in [0, 1], usually well below 1 / number of records",
    )


def _add_epsilon(parser: Parser, *, required: bool, nargs: str | None = None) -> None:
    parser.add_argument(
        "--epsilon",
        type=number,
        required=required,
        nargs=nargs,
        help="privacy loss in nats",
    )


def _add_outputs(parser: Parser) -> None:
    _add_json(parser)
    parser.add_argument(
        "--plot",
        metavar="FILE",
        help="draw trade-off function and profile (.png, .pdf, .svg)",
    )


def _add_json(parser: Parser) -> None:
    parser.add_argument(
        "--json",
        metavar="FILE",
        help="write the answer as JSON; - for standard output, then the text goes to "
        "standard error",
    )
