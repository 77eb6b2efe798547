"""How much memory the default device has."""

import os

from ._place import device


def memory_size() -> int | None:
    """Bytes of memory of the default device, or None if that is not known."""
    stats = device().memory_stats()
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not on every platform
        return None
