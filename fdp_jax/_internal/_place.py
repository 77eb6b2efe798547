"""The device that programs run on here and now, and the processor beside it."""

from typing import Any, TypeAlias

import jax

Device: TypeAlias = Any
"""A `jax.Device`, which type checkers see as a variable."""


def device() -> Device:
    """JAX's default device, in a context of `jax.default_device` that one's."""
    # Pyright does not see the flags, which JAX adds to its configuration on import.
    config: Any = jax.config
    chosen = config.jax_default_device
    if isinstance(chosen, str):
        return jax.local_devices(backend=chosen)[0]
    return chosen or jax.local_devices()[0]


def is_accelerator(device: Device) -> bool:
    """Whether a device is no CPU."""
    return device.platform != "cpu"


def on_cpu() -> bool:
    """Whether programs run on a CPU."""
    return not is_accelerator(device())


def processors() -> list[Device]:
    """The CPU's devices; those of the accelerator where JAX was told to use no CPU."""
    try:
        return jax.local_devices(backend="cpu")
    except RuntimeError:
        return jax.local_devices()
