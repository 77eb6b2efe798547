"""Random keys and bits of traced programs in NumPy: those of JAX's usual generator.

A key is a number of eight bytes; drawing from it is a program of 32-bit integers, JAX's
own, whose one step without a rule is the hash here.
"""

from typing import Any

import jax
import numpy as np
from jax.extend.random import threefry_prng_impl as _USUAL

KEY = "V8"
"""The type of a key in NumPy."""
_DRAWS = {
    "random_bits": (_USUAL.random_bits, ("bit_width", "shape")),
    "random_split": (_USUAL.split, ("shape",)),
    "random_fold_in": (_USUAL.fold_in, ()),
}
"""By primitive: what the generator does, and its arguments beside the key."""
_ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
_PARITY = 0x1BD11BDA


def is_numeric(atom: Any) -> bool:
    """Whether NumPy has such numbers: no random keys, and no short floats."""
    return getattr(atom.aval.dtype, "kind", "V") in "biufc"


def is_key(atom: Any) -> bool:
    """Whether a value is a key of the usual generator, or an array of those."""
    return not is_numeric(atom) and str(atom.aval.dtype) == f"key<{_USUAL.tag}>"


def drawing(eqn: Any) -> Any:
    """The program that draws from one key, splits it, or folds a number into it.

    None for other equations.
    """
    draw, params = _DRAWS.get(eqn.primitive.name, (None, ()))
    if draw is None or not is_key(eqn.invars[0]) or eqn.invars[0].aval.shape:
        return None

    def run(key: Any, *args: Any) -> Any:
        found = draw(jax.random.key_data(key), *args, *map(eqn.params.get, params))
        bits = draw is _USUAL.random_bits
        return found if bits else jax.random.wrap_key_data(found, impl=_USUAL.name)

    kinds = [jax.ShapeDtypeStruct(x.aval.shape, x.aval.dtype) for x in eqn.invars]
    with jax.enable_x64(True):
        return jax.make_jaxpr(run)(*kinds)


def wrapped(data: Any) -> Any:
    """Pairs of numbers as keys."""
    return np.ascontiguousarray(data).view(KEY)[..., 0]


def unwrapped(keys: Any) -> Any:
    """Keys as pairs of numbers."""
    return np.ascontiguousarray(np.asarray(keys)[..., None]).view(np.uint32)


def places(shape: tuple[int, ...]) -> tuple[Any, Any]:
    """The upper and the lower half of the place of each number of an array."""
    place = np.arange(np.prod(shape, dtype=np.int64), dtype=np.uint64).reshape(shape)
    return (place >> np.uint64(32)).astype(np.uint32), place.astype(np.uint32)


def threefry(first: Any, second: Any, *block: Any) -> tuple[Any, Any]:
    """The hash Threefry-2x32 with 20 rounds of Salmon et al. (2011), of two numbers."""
    keys = first, second, first ^ second ^ np.uint32(_PARITY)
    x, y = (value + key for value, key in zip(block, keys, strict=False))
    x, y = (np.array(z, ndmin=1) for z in np.broadcast_arrays(x, y))
    room = np.empty_like(x)
    for i in range(5):
        for turn in _ROTATIONS[i % 2]:
            x += y
            np.right_shift(y, np.uint32(32 - turn), out=room)
            y <<= np.uint32(turn)
            y |= room
            y ^= x
        x += keys[(i + 1) % 3]
        y += keys[(i + 2) % 3] + np.uint32(i + 1)
    shape = np.broadcast_shapes(*(np.shape(z) for z in (first, second, *block)))
    return x.reshape(shape), y.reshape(shape)
