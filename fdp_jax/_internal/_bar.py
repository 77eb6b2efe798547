"""A progress bar behind what is done one after the other."""

import importlib.util
from collections.abc import Iterable
from typing import Any

from . import _checks
from ._extras import imported


def with_bar(
    items: Iterable[Any], wanted: bool | None, **options: Any
) -> Iterable[Any]:
    """The items, behind a bar of tqdm if there is to be one.

    Args:
        items: What is gone through.
        wanted: Whether there is a bar; for None, if tqdm is installed.
        **options: Of tqdm.
    """
    if wanted is None:
        wanted = importlib.util.find_spec("tqdm") is not None
    if not _checks.flag("progress", wanted):
        return items
    return imported("tqdm.auto", "a progress bar", "training").tqdm(items, **options)
