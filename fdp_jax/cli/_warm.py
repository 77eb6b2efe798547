"""`fdp-jax warm`: compiles and keeps the programs of usual questions."""

import argparse
import time
from collections.abc import Callable

import jax

from .. import calibration, mechanisms
from .._internal import _checks
from .._internal._compilation import compiled_at_once
from .._internal._program_cache import folder
from ..accounting import Accountant
from ._options import OK, QUERIES
from ._output import Output

_RUN = {"noise_multiplier": 1.0, "sampling_prob": 0.01, "num_steps": 1000.0}
_POINT = {"delta": 1e-5, "epsilon": 0.5, "alpha": 0.1, "fpr": 0.1, "prior": 0.5}
_TARGET = {"epsilon": 2.0, "delta": 1e-5}


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Ask the questions; the exit status."""
    place = folder()
    _checks.require(
        place is not None, "warm needs a folder for programs, but FDP_JAX_CACHE is off"
    )
    for kind in arguments.kinds:
        began = time.monotonic()
        # Programs of the command line have other types than those of most scripts.
        for wide in (True, False):
            with jax.enable_x64(wide), compiled_at_once():
                _KINDS[kind]()
        output.say(f"{kind}: {time.monotonic() - began:.0f} s")
    output.say(f"kept in {place}")
    return OK


def _ask(mechanism: mechanisms.AbstractMechanism) -> None:
    """All queries at one point."""
    for name, given in QUERIES.items():
        at = {} if given is None else {given: _POINT[given]}
        getattr(mechanism, name.replace("-", "_"))(**at)
    mechanism.bounds(delta=_POINT["delta"])


def _calibrate() -> None:
    target = calibration.targets.ApproxDP(**_TARGET)
    for name in _RUN:
        rest = {key: x for key, x in _RUN.items() if key != name}
        calibration.calibrate(mechanisms.DPSGD(**rest), target, solve_for=name)


def _account() -> None:
    step = mechanisms.DPSGD(**_RUN | {"num_steps": 1.0})
    account = Accountant().step(step, 1000)
    account.epsilon(delta=1e-5)
    account.remaining(calibration.targets.ApproxDP(**_TARGET), step)


_KINDS: dict[str, Callable[[], None]] = {
    "dpsgd": lambda: _ask(mechanisms.DPSGD(**_RUN)),
    "calibrate": _calibrate,
    "account": _account,
    "gaussian": lambda: _ask(mechanisms.Gaussian(1.0)),
    "laplace": lambda: _ask(mechanisms.Laplace(1.0)),
}
