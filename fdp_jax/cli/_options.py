"""The table of commands and options, without JAX, which takes a second to import."""

import argparse
import math
from typing import Any, NamedTuple

OK, BAD_VALUE, UNREACHABLE = 0, 2, 3
"""Exit statuses."""
PIPE_CLOSED = 141
"""Exit status of a program that SIGPIPE ends."""
STANDARD = "-"
"""The name of a file that stands for standard output."""
QUERIES = {
    "epsilon": "delta",
    "delta": "epsilon",
    "beta": "alpha",
    "tpr": "fpr",
    "bayes-error": "prior",
    "advantage": None,
}
"""Commands that ask for a number, and what it is asked at."""
TARGETS = {
    "ApproxDP": ("epsilon", "delta"),
    "ErrorRates": ("alpha", "beta"),
    "Advantage": ("advantage",),
}
"""Targets of a calibration, and the options that state one."""
WARM = "dpsgd", "calibrate", "account", "gaussian", "laplace"
"""Kinds of questions whose programs can be made beforehand."""


class Scheme(NamedTuple):
    """A scheme of sampling."""

    kind: str
    """Its name in `fdp_jax.sampling`, which the parser does without."""
    names: dict[str, str]
    """Arguments of the command line, and what the scheme calls them."""


_PROB = {"sampling_prob": "prob"}
_SIZES = {"batch_size": "batch_size", "dataset_size": "dataset_size"}
_BATCHES = {"num_batches": "num_batches"}
SCHEMES = {
    "poisson": Scheme("Poisson", _PROB),
    "fixed-size": Scheme("FixedSize", _SIZES),
    "with-replacement": Scheme("WithReplacement", _SIZES),
    "truncated-poisson": Scheme("TruncatedPoisson", _PROB | _SIZES),
    "random-allocation": Scheme("RandomAllocation", _BATCHES),
    "cyclic-poisson": Scheme("CyclicPoisson", _PROB | {"num_groups": "num_groups"}),
    "shuffled-epochs": Scheme("ShuffledEpochs", _BATCHES),
    "user-examples": Scheme("UserLevel", _PROB | {"max_examples": "max_examples"}),
}
NUMBERS = tuple(dict.fromkeys(n for s in SCHEMES.values() for n in s.names))
"""All arguments that describe a scheme."""
PARAMETERS = "noise_multiplier", "num_steps"
DESCRIPTION = "mechanism", *PARAMETERS, "relation", "sampling", *NUMBERS
"""Names of all arguments that describe a run."""
USUAL = {"relation": "add-or-remove-one", "sampling": "poisson"}
"""Arguments that are meant where a run of DP-SGD does not say."""

_UNIT = "in [0, 1]", lambda x: 0 <= x <= 1
ALLOWED = dict.fromkeys(
    ("sampling_prob", "delta", "alpha", "beta", "fpr", "prior", "advantage"), _UNIT
) | {
    # Of no noise at all the library says what that is.
    "noise_multiplier": ("a positive number", lambda x: x >= 0),
    "num_steps": ("a finite number, at least 0", lambda x: 0 <= x < math.inf),
    "epsilon": ("a number", lambda x: x == x),
}
"""Ranges of numbers, those of the library's own checks."""


def number(text: str) -> float:
    """A number, or a ratio such as 256/60000."""
    top, slash, bottom = text.replace("_", "").partition("/")
    try:
        return float(top) / float(bottom) if slash else float(top)
    except (ValueError, ZeroDivisionError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no number (a ratio such as 256/60000 is one)"
        ) from None


def flag(name: str) -> str:
    """The option that gives an argument."""
    return f"--{name.replace('_', '-')}"


_Options = dict[str, dict[str, Any]]
"""Settings of `argparse` by options."""


def _counts(meaning: str) -> dict[str, Any]:
    return {"type": int, "metavar": "K", "help": meaning}


RUN: _Options = {
    "mechanism": {
        "metavar": "NAME",
        "help": "a mechanism, whose arguments the other options give, or a call as it "
        "is printed, such as 'Laplace(2).repeat(10)' (default: DPSGD)",
    },
    "noise-multiplier": {
        "type": number,
        "metavar": "SIGMA",
        "help": "standard deviation of the noise over the clipping norm (no unit), > 0",
    },
    "num-steps": {
        "type": number,
        "metavar": "N",
        "help": "number of noisy updates, >= 0",
    },
    "sampling-prob": {
        "type": number,
        "metavar": "Q",
        "help": "probability that a record is in a batch, in [0, 1]; 256/60000 is fine",
    },
    "sampling": {
        "choices": tuple(SCHEMES),
        "help": "how batches are drawn (default: poisson)",
    },
    "batch-size": _counts("size of a batch, or the largest that is kept"),
    "dataset-size": _counts("number of records"),
    "num-batches": _counts("batches of an epoch"),
    "num-groups": _counts("groups of records that take turns"),
    "max-examples": _counts("most examples of one user"),
    "relation": {
        "choices": ("add-or-remove-one", "replace-one", "zero-out"),
        "help": "which data sets are neighbors (default: add-or-remove-one)",
    },
}
_POINTS = {
    "epsilon": "privacy loss in nats",
    "fpr": "false positive rate of the attack, in [0, 1]",
    "prior": "probability that the record is absent, in [0, 1]",
    "delta": "probability in [0, 1], usually well below 1 / number of records",
    "alpha": "false positive rate of the attack to be excluded, in (0, 1)",
    "beta": "false negative rate that any attack at --alpha shall have at least",
    "advantage": "largest admissible TPR - FPR of any attack, in (0, 1)",
}


def _points(*names: str, **options: Any) -> _Options:
    return {f"--{x}": {"type": number, "help": _POINTS[x]} | options for x in names}


_THIS = {f"--{name}": x for name, x in RUN.items()}
_OTHER = {f"--other-{name}": x for name, x in RUN.items()}
_TARGET: _Options = {
    **_points(*(name for names in TARGETS.values() for name in names)),
    "--solve-for": {
        "metavar": "PARAMETER",
        "default": "noise_multiplier",
        "type": lambda text: text.replace("-", "_"),
        "help": "parameter to find (default: noise_multiplier)",
    },
    "--whole": {
        "action": "store_true",
        "help": "find a whole number, such as of steps",
    },
}
_JSON: _Options = {
    "--json": {
        "metavar": "FILE",
        "help": "write the answer as JSON; - for standard output, then the text goes "
        "to standard error",
    }
}
_OUTPUTS = _JSON | {
    "--plot": {
        "metavar": "FILE",
        "help": "draw trade-off function and profile (.png, .pdf, .svg)",
    }
}


class Command(NamedTuple):
    """A command of the command line."""

    run: str
    """The module and the name of the function that carries it out."""
    help: str
    groups: dict[str, _Options]
    """Options by the titles of their groups."""
    description: str | None = None


_ANSWERS = {
    "epsilon": "epsilon",
    "delta": "delta",
    "beta": "least false negative rate of any attack",
    "tpr": "largest true positive rate of any attack",
    "bayes-error": "least error probability of any attack",
    "advantage": "largest TPR - FPR of any attack",
}
COMMANDS = {
    name: Command(
        "_answers.query",
        _ANSWERS[name] + (f" at one {given} or more" if given else ""),
        {
            "the run": _THIS,
            "the question": _points(given, required=True, nargs="+") if given else {},
            "outputs": _OUTPUTS,
        },
    )
    for name, given in QUERIES.items()
} | {
    "calibrate": Command(
        "_calibrate.run",
        "find the noise, or any other number of a mechanism, for a target",
        {"the run": _THIS, "the target": _TARGET, "outputs": _OUTPUTS},
        "Give the other parameters of the run and one target: --epsilon with --delta, "
        "or --alpha with --beta, or --advantage.",
    ),
    "report": Command(
        "_answers.report",
        "everything about one run, to publish",
        {
            "the run": _THIS,
            "the question": _points("delta", required=True),
            "outputs": _OUTPUTS,
        },
    ),
    "compare": Command(
        "_answers.compare",
        "which of two runs is more private, and against whom",
        {"the run": _THIS, "the other run": _OTHER, "outputs": _JSON},
        "The other run is the same but for what --other-... says of it.",
    ),
    "verify": Command(
        "_verify.run",
        "compute an answer again, by another engine and by dp-accounting",
        {
            "outputs": _JSON,
            "the file": {"file": {"metavar": "FILE", "help": "the JSON file"}},
        },
        "Reads a receipt, or a file that epsilon, delta, calibrate or report has "
        "written with --json. Exit status 3 if a bound in it is contradicted.",
    ),
    "demo": Command(
        "_demo.run",
        "recompute published DP-SGD runs and calibrate them",
        {
            "outputs": {
                "--output": {
                    "metavar": "DIR",
                    "default": "demo",
                    "help": "folder for report.json and tradeoff.png (default: demo)",
                }
            }
        },
    ),
    "sweep": Command(
        "_sweep.run",
        "ask the same about many configurations",
        {
            "the sweep": {
                "file": {"metavar": "FILE", "help": "what to do, in TOML"},
                "--out": {
                    "metavar": "DIR",
                    "required": True,
                    "help": "folder for the results",
                },
                "--plot": {
                    "metavar": "FILE",
                    "help": "draw the first answer over two axes",
                },
                "--quiet": {"action": "store_true", "help": "no progress bar"},
            }
        },
        "The file names a mechanism, a grid or columns of configurations, and queries. "
        "A sweep that was stopped goes on.",
    ),
    "warm": Command(
        "_warm.run",
        "compile the programs of usual questions, and keep them for later",
        {
            "the questions": {
                "--kinds": {
                    "nargs": "+",
                    "choices": WARM,
                    "default": WARM,
                    "metavar": "KIND",
                    "help": f"some of {', '.join(WARM)} (default: all)",
                }
            }
        },
        "Takes minutes, once for each version. Programs for 64-bit numbers (as here) "
        "and for 32 bits (as in most scripts) are others: both are made.",
    ),
    "completion": Command(
        "_completion.run",
        "completions for a shell, to be sourced by it",
        {"the shell": {"shell": {"choices": ("bash", "zsh", "tcsh")}}},
    ),
}
