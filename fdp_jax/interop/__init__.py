"""Other libraries' descriptions of mechanisms: dp_accounting's events and PLDs.

`FdpAccountant`, a `dp_accounting.PrivacyAccountant`, is made on first use; only it and
`to_dp_event` need dp_accounting (`pip install 'fdp-jax[dp-accounting]'`).
"""

import importlib.util
from typing import Any

from ._accountant import accountant_class as accountant_class
from ._from_event import from_dp_event as from_dp_event
from ._from_pld import from_pld as from_pld
from ._to_event import to_dp_event as to_dp_event

FdpAccountant: Any


def __getattr__(name: str) -> Any:
    if name == "FdpAccountant":
        return accountant_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    names = ["accountant_class", "from_dp_event", "from_pld", "to_dp_event"]
    installed = importlib.util.find_spec("dp_accounting") is not None
    return ["FdpAccountant", *names] if installed else names
