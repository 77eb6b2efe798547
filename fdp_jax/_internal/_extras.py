"""Packages that an extra of fdp-jax installs, imported when they are needed."""

import importlib
from typing import Any


def imported(module: str, needed_by: str, extra: str) -> Any:
    """A module of such a package.

    Raises:
        ImportError: If it is not installed; it is said how to get it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0].replace("_", "-")
        raise ImportError(
            f"{needed_by} needs {package}: pip install 'fdp-jax[{extra}]'"
        ) from error
