"""Arguments of the command line."""

import argparse
import importlib.metadata
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from .._internal._calls import suggestion
from ._early import QUERIES, TARGETS, WARM
from ._scheme import SCHEMES

_NUMBERS = {
    "--batch-size": "size of a batch, or the largest that is kept",
    "--dataset-size": "number of records",
    "--num-batches": "batches of an epoch",
    "--num-groups": "groups of records that take turns",
    "--max-examples": "most examples of one user",
}
_RELATIONS = "add-or-remove-one", "replace-one", "zero-out"


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, with exit status 2.

    Abbreviations are refused: a script with one would break with the next option.
    """

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **{"allow_abbrev": False} | options)

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, args: Any = None, namespace: Any = None
    ) -> Any:
        """As usual, but a wrong option is named before those that are missing."""
        known = self._option_string_actions
        options = {x.lstrip("-").replace("-", "_"): x for x in known}
        for word in [] if self._subparsers else args or ():
            name = word.partition("=")[0]
            if name[:2] == "--" != name and name not in known:
                found = suggestion(name[2:].replace("-", "_"), options)
                hint = f": did you mean {options[found]}?" if found else ""
                self.error(f"there is no option {name}{hint}")
        return super().parse_known_args(args, namespace)

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
        description="Certified privacy accounting and calibration of DP-SGD and all "
        "other mechanisms.",
        epilog="Exit status: 0 answered, 2 bad usage or values, 3 target unreachable "
        "or only a vacuous bound. Compiled programs are kept in the user's cache "
        "folder; FDP_JAX_CACHE moves that, or switches it off.",
    )
    version = importlib.metadata.version("fdp-jax")
    parser.add_argument("--version", action="version", version=f"fdp-jax {version}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run, json, outputs = _run(), _outputs(), _outputs(plot=True)

    for command, given in QUERIES.items():
        point = (
            [] if given is None else [_point(f"--{given}", required=True, nargs="+")]
        )
        commands.add_parser(
            command,
            parents=[run, *point, outputs],
            help=_ANSWERS[command] + (f" at one {given} or more" if given else ""),
        )
    commands.add_parser(
        "calibrate",
        parents=[run, _target(), outputs],
        help="find the noise, or any other number of a mechanism, for a target",
        description="Give the other parameters of the run and one target: "
        "--epsilon with --delta, or --alpha with --beta, or --advantage.",
    )
    commands.add_parser(
        "report",
        parents=[run, _point("--delta", required=True), outputs],
        help="everything about one run, to publish",
    )
    commands.add_parser(
        "compare",
        parents=[run, _run(prefix="other-"), json],
        help="which of two runs is more private, and against whom",
        description="The other run is the same but for what --other-... says of it.",
    )
    verify = commands.add_parser(
        "verify",
        parents=[json],
        help="compute an answer again, by another engine and by dp-accounting",
        description="Reads a receipt, or a file that epsilon, delta, calibrate or "
        "report has written with --json. Exit status 3 if a bound in it is "
        "contradicted.",
    )
    verify.add_argument("file", metavar="FILE", help="the JSON file")
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

    warm = commands.add_parser(
        "warm",
        help="compile the programs of usual questions, and keep them for later",
        description="Takes minutes, once for each version. Programs for 64-bit numbers "
        "(as here) and for 32 bits (as in most scripts) are others: both are made.",
    )
    warm.add_argument(
        "--kinds",
        nargs="+",
        choices=WARM,
        default=WARM,
        metavar="KIND",
        help=f"some of {', '.join(WARM)} (default: all)",
    )

    completion = commands.add_parser(
        "completion", help="completions for a shell, to be sourced by it"
    )
    completion.add_argument("shell", choices=("bash", "zsh", "tcsh"))
    return parser


def _options(title: str) -> tuple[Parser, Callable[..., Any]]:
    """Options that commands share, and what adds one to them."""
    shared = Parser(add_help=False)
    return shared, shared.add_argument_group(title).add_argument


def _run(*, prefix: str = "") -> Parser:
    """The description of a run."""
    shared, add = _options("the other run" if prefix else "the run")
    add(
        f"--{prefix}mechanism",
        metavar="NAME",
        help="a mechanism, whose arguments the other options give, or a call as it is "
        "printed, such as 'Laplace(2).repeat(10)' (default: DPSGD)",
    )
    add(
        f"--{prefix}noise-multiplier",
        type=number,
        metavar="SIGMA",
        help="standard deviation of the noise over the clipping norm (no unit), > 0",
    )
    add(
        f"--{prefix}num-steps",
        type=number,
        metavar="N",
        help="number of noisy updates, >= 0",
    )
    add(
        f"--{prefix}sampling-prob",
        type=number,
        metavar="Q",
        help="probability that a record is in a batch, in [0, 1]; 256/60000 is fine",
    )
    add(
        f"--{prefix}sampling",
        choices=tuple(SCHEMES),
        help="how batches are drawn (default: poisson)",
    )
    for name, meaning in _NUMBERS.items():
        add(name.replace("--", f"--{prefix}"), type=int, metavar="K", help=meaning)
    add(
        f"--{prefix}relation",
        choices=_RELATIONS,
        help="which data sets are neighbors (default: add-or-remove-one)",
    )
    return shared


_ANSWERS = {
    "epsilon": "epsilon",
    "delta": "delta",
    "beta": "least false negative rate of any attack",
    "tpr": "largest true positive rate of any attack",
    "bayes-error": "least error probability of any attack",
    "advantage": "largest TPR - FPR of any attack",
}
_POINTS = {
    "--epsilon": "privacy loss in nats",
    "--fpr": "false positive rate of the attack, in [0, 1]",
    "--prior": "probability that the record is absent, in [0, 1]",
    "--delta": "probability in [0, 1], usually well below 1 / number of records",
    "--alpha": "false positive rate of the attack to be excluded, in (0, 1)",
    "--beta": "false negative rate that any attack at --alpha shall have at least",
    "--advantage": "largest admissible TPR - FPR of any attack, in (0, 1)",
}


def _point(name: str, **options: Any) -> Parser:
    """The options that say where the answer is wanted."""
    shared, add = _options("the question")
    add(name, type=number, help=_POINTS[name], **options)
    return shared


def _target() -> Parser:
    """The options of a target, and of the parameter that meets it."""
    shared, add = _options("the target")
    for name in TARGETS:
        add(f"--{name}", type=number, help=_POINTS[f"--{name}"])
    add(
        "--solve-for",
        metavar="PARAMETER",
        default="noise_multiplier",
        type=lambda text: text.replace("-", "_"),
        help="parameter to find (default: noise_multiplier)",
    )
    add("--whole", action="store_true", help="find a whole number, such as of steps")
    return shared


def _outputs(*, plot: bool = False) -> Parser:
    """The options of files that the answer is written to."""
    shared, add = _options("outputs")
    add(
        "--json",
        metavar="FILE",
        help="write the answer as JSON; - for standard output, then the text goes to "
        "standard error",
    )
    if plot:
        add(
            "--plot",
            metavar="FILE",
            help="draw trade-off function and profile (.png, .pdf, .svg)",
        )
    return shared
