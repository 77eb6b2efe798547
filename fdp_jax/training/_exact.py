"""Sums of gradients that are exact, and noise that is added to them exactly.

Floating-point addition depends on the order: in a large sum one record may decide how
all others are rounded, and so move it by many clipping norms (Casacuberta et al., 2022,
arXiv:2207.10635).  Here a sum is of whole numbers.

1. A record's bounded gradient x has a length of at most the bound, which is less than
   2^28 units; the unit is a power of two, so that dividing by it does not round.  Every
   entry is cut to a whole number of units, toward zero.  That makes no entry larger and
   so x no longer: what is really added up has a length of at most the bound, too, and
   is a function of the record and the model alone.
2. Whole numbers are added without any error, in every order and over all devices: no
   number is too large for its 32 bits.  Entries are less than 2^28 in size, so eight of
   them less than 2^31; those sums are parted into 17 and 14 bits, either of which may
   be added up for 2^13 groups of eight, that is 2^16 records.  A total is kept as
   high 2^30 + low with |low| <= 2^29; of 2^30 records it is less than 2^58, so high is
   at most 2^28 in size.  Hence the sums of two data sets that differ in a record differ
   by exactly what the record adds.
3. The noise is rounded to whole units, and is added as such.  Rounding it is no loss of
   privacy: S + round(Z) = round(S + Z) for a whole number S, and what is computed from
   S + Z alone is as private as it is.  The same goes for all that follows: a total with
   a high part beyond 2^29 becomes 2^59 (noise beyond 2^60 is cut to about that before,
   which leads there whatever S is), and is rounded to floating point.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from .._internal._record import Record

WIDEST = 1 << 16
"""Most records whose entries are added at a time."""
MOST_OVER_DEVICES = 1 << 32
"""The largest product of the numbers of records and of devices."""
_BITS = 28
_MOST = float(2**_BITS - 16)
"""The largest number in float32 below 2^28."""
_GROUP = 8
_LIMB = 30
_TERMS = 16
_LAST = 64


class Whole(Record):
    """An array of whole numbers, high 2^30 + low."""

    high: Int[Array, "..."]
    low: Int[Array, "..."]

    @classmethod
    def zeros(cls, shape: tuple[int, ...]) -> "Whole":
        """Nothing yet."""
        return cls(jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.int32))

    @classmethod
    def of_integers(cls, numbers: Int[Array, "..."]) -> "Whole":
        """Numbers of 32 bits."""
        return _carried(jnp.zeros_like(numbers), numbers)

    @classmethod
    def of_floats(cls, numbers: Float[Array, "..."]) -> "Whole":
        """Numbers rounded; those beyond 2^60, and NaN, become 2^60 or so."""
        numbers = jnp.where(jnp.isnan(numbers), jnp.inf, numbers)
        high = jnp.clip(jnp.round(numbers * 2.0**-_LIMB), -(2.0**30), 2.0**30)
        # The difference has no more digits than the number, and is exact.
        low = jnp.clip(numbers - high * 2.0**_LIMB, -(2.0**29), 2.0**29)
        return _carried(_integers(high), _integers(low))

    def plus(self, other: "Whole") -> "Whole":
        """The sum of both."""
        return _carried(self.high + other.high, self.low + other.low)

    def with_noise(self, key: Array, noise: Float[Array, "..."]) -> "Whole":
        """With noise, rounded, and no larger than 2^59 (see above).

        Large numbers in float32 are multiples of a power of two, by which a difference
        of sums would show: to each is added what is uniform over a few of its last
        digits.
        """
        blur = jax.random.uniform(key, noise.shape, noise.dtype, -1, 1)
        blur = jnp.clip(noise * (blur * 2.0**-22), -(2.0**28), 2.0**28)
        drawn = Whole.of_floats(noise).plus(Whole.of_integers(_integers(blur)))
        found, most = self.plus(drawn), 1 << 29
        over = jnp.abs(found.high) > most
        high = jnp.clip(found.high, -most, most)
        return Whole(high, jnp.where(over, 0, found.low))

    def value(self, dtype: Any) -> Array:
        """As floating-point numbers."""
        return self.high.astype(dtype) * 2.0**_LIMB + self.low.astype(dtype)

    def over(self, axis: str, devices: int) -> "Whole":
        """The sum over the devices of a mesh, exact like that over records.

        Cut in another place: of 2^p devices, or fewer but more than half as many, the
        low parts have 31 - p bits, so that their sum is below 2^31.  The records are at
        most 2^32 over the devices, which is less than 2^(33 - p): the sum of the high
        parts is below 2^(28 + 33 - p - (31 - p)) = 2^30.
        """
        bits = min(_LIMB, 31 - (devices - 1).bit_length())
        rest, mask = _LIMB - bits, (1 << bits) - 1
        high = (self.high << rest) + (self.low >> bits)
        high, low = lax.psum((high, self.low & mask), axis)
        high, low = high + (low >> bits), low & mask
        low = ((high & ((1 << rest) - 1)) << bits) + low
        return _carried(high >> rest, low)


def _integers(numbers: Float[Array, "..."]) -> Int[Array, "..."]:
    return jnp.round(numbers).astype(jnp.int32)


def _carried(high: Array, low: Array) -> Whole:
    """With a low part in [-2^29, 2^29)."""
    carry = (low >> _LIMB) + ((low >> (_LIMB - 1)) & 1)
    return Whole(high + carry, low - (carry << _LIMB))


def unit_of(bound: Array) -> Float[Array, ""]:
    """The power of two of which a bound is less than 2^28, and at least 2^27."""
    return jnp.ldexp(jnp.float32(1), exponent_of(bound) - _BITS)


def exponent_of(bound: Array) -> Int[Array, ""]:
    """The least e with bound < 2^e."""
    return jnp.frexp(jnp.asarray(bound, jnp.float32))[1]


def sum_of_rows(
    rows: Float[Array, "n ..."], factors: Float[Array, " n"], inside: Bool[Array, " n"]
) -> Whole:
    """The sum of rows times factors, of those inside, each cut toward zero.

    Rows are read once.  Whatever the factors are, no entry counts more than 2^28.

    Args:
        rows: Of at most 2^16 records.
        factors: What they are multiplied by, over the unit.
        inside: Which rows count.  Others may be anything.
    """
    column = lambda x: x.reshape(-1, *[1] * (rows.ndim - 1))
    scaled = jnp.where(column(inside), rows * column(factors).astype(rows.dtype), 0)
    # A conversion cuts toward zero.
    whole = jnp.clip(scaled, -_MOST, _MOST).astype(jnp.int32)
    # Few numbers at a time are added in registers; one sum of all is slower.
    groups = len(rows) // _GROUP
    many, few = whole[: groups * _GROUP], whole[groups * _GROUP :]
    add = lambda x, axis: jnp.sum(x, axis, dtype=jnp.int32)
    sums = [add(many.reshape(groups, _GROUP, *rows.shape[1:]), 1)] if groups else []
    sums += [add(few, 0)[None]] if len(few) else []
    bits = _BITS // 2
    one = jnp.concatenate(sums)
    high, low = add(one >> bits, 0), add(one & ((1 << bits) - 1), 0)
    more = _LIMB - bits
    return _carried(high >> more, ((high & ((1 << more) - 1)) << bits) + low)


def length(
    numbers: Float[Array, "*batch n"], scale: Any = 1.0
) -> Float[Array, "*batch"]:
    """Euclidean lengths along the last axis, times a scale; they are never too small.

    n squares are added by sixteens, at the end up to 64 of them in any order.  Every
    sum on the way from a square to the total has a relative error of at most u (2^-24
    in float32), so with m sums on the longest way the sum of squares is at least
    (1 - u)^(m + 1) times the true one, but for squares below 1.2e-38, which count as
    zero: lengths are right to within 1.1e-19 sqrt(n), besides.  What is returned is
    larger by (m + 7) u, of which (m + 1) u / 2 are for that, 3 u for the root and the
    product, and the rest for terms of second order, as long as m is below 2^20.
    """
    # Of slices, so that XLA does not write squares of all numbers at once.
    terms = lambda x: jnp.square(x * scale)
    found, depth = numbers, 0
    while (size := found.shape[-1]) > _LAST:
        each = size // _TERMS
        cut = [found[..., i * each : (i + 1) * each] for i in range(_TERMS)]
        first, *others = (terms(x) for x in cut)
        left = terms(found[..., _TERMS * each :])
        # Else XLA would put all of it into one expression.
        found = lax.optimization_barrier(
            jnp.concatenate([sum(others, first), left], axis=-1)
        )
        terms, depth = lambda x: x, depth + _TERMS - 1
    total = jnp.sum(terms(found), axis=-1)
    more = (depth + size + 6) * float(jnp.finfo(numbers.dtype).epsneg)
    return jnp.sqrt(total) * (1 + more)


def normal(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """Independent standard normal numbers, each the sum of two draws.

    One draw in float32 has 2^23 values, none beyond 5.5, which an attacker could tell
    from a normal law in places where delta is about 1e-7.
    """
    one, other = (jax.random.normal(k, shape, dtype) for k in jax.random.split(key))
    return (one + other) * float(np.sqrt(0.5))
