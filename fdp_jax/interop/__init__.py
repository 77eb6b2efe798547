"""Other libraries: dp_accounting's events and PLDs, Opacus, Flower, JAX-Privacy.

Three classes are subclasses of theirs, and are made on first use, when the library must
be installed: `FdpAccountant` (`pip install 'fdp-jax[dp-accounting]'`, which
`to_dp_event` needs too), `OpacusAccountant` (`'fdp-jax[opacus]'`) and
`FdpAccountantConfig` (`'fdp-jax[jax-privacy]'`).
"""

import importlib.util
from typing import Any

from ._accountant import (
    accountant_class as accountant_class,
    calibrate_dp_mechanism as calibrate_dp_mechanism,
)
from ._flower import FlowerAccountant as FlowerAccountant
from ._from_event import from_dp_event as from_dp_event
from ._from_pld import from_pld as from_pld
from ._jax_privacy import (
    accountant_config_class as accountant_config_class,
    calibrate_plan as calibrate_plan,
    from_execution_plan as from_execution_plan,
)
from ._opacus import (
    opacus_accountant_class as opacus_accountant_class,
    register_with_opacus as register_with_opacus,
)
from ._to_event import to_dp_event as to_dp_event

FdpAccountant: Any
FdpAccountantConfig: Any
OpacusAccountant: Any

_MADE = {
    "FdpAccountant": ("dp_accounting", accountant_class),
    "FdpAccountantConfig": ("jax_privacy", accountant_config_class),
    "OpacusAccountant": ("opacus", opacus_accountant_class),
}
_FUNCTIONS = (
    *("accountant_class", "accountant_config_class"),
    *("calibrate_dp_mechanism", "calibrate_plan", "FlowerAccountant"),
    *("from_dp_event", "from_execution_plan", "from_pld"),
    *("opacus_accountant_class", "register_with_opacus", "to_dp_event"),
)


def __getattr__(name: str) -> Any:
    if name in _MADE:
        return _MADE[name][1]()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    made = [
        name
        for name, (library, _) in _MADE.items()
        if importlib.util.find_spec(library) is not None
    ]
    return [*made, *_FUNCTIONS]
