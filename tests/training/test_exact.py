"""Exact sums: against Python's integers, in every order, and where others fail."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdp_jax import training
from fdp_jax.training import _exact as exact
from fdp_jax.training._exact import Whole

RANDOM = np.random.default_rng(5)
LIMIT = 2**28


def _value(whole):
    """As Python's integers."""
    high, low = (np.asarray(x).astype(object) for x in (whole.high, whole.low))
    assert np.all(np.abs(np.asarray(whole.low, np.int64)) <= 2**29)
    return high * 2**30 + low


def _of(numbers):
    numbers = np.asarray(numbers, object)
    low = (numbers + 2**29) % 2**30 - 2**29
    high = ((numbers - low) // 2**30).astype(np.int32)
    return Whole(jnp.asarray(high), jnp.asarray(low.astype(np.int32)))


def _integers(most, size):
    """Of all sizes, the largest among them."""
    found = [int(RANDOM.integers(-(2**b), 2**b)) for b in RANDOM.integers(1, 58, size)]
    return np.asarray([min(max(x, -most), most) for x in found] + [most, -most, 0])


# --------------------------------------------------------------------- the known attack


def _microbatch_sums(values, width):
    """What a sum in float32 comes to that is exact inside of a microbatch."""
    total = np.float32(0)
    for start in range(0, len(values), width):
        total += np.float32(values[start : start + width].astype(np.float64).sum())
    return total


@pytest.mark.parametrize(
    ("half", "plain"), [(8192, 1.01), (65_536, 1.9), (524_288, 60.0)]
)
def test_one_record_moves_a_sum_by_its_norm_where_rounding_moves_it_by_more(
    half, plain
):
    """Of others that are rounded up where it is, and lost where it is not.

    Records whose microbatches are a little less than half a unit in the last place of a
    sum that is a power of two.
    """
    width = 256
    small = -0.49 * np.spacing(np.float32(half)) / width
    values = np.concatenate([np.ones(half + 1), np.full(half, small)])
    values = values.astype(np.float32)
    inside = np.ones((2, len(values)), bool)
    inside[1, half] = False
    rounded = [_microbatch_sums(values[x], width) for x in inside]
    assert rounded[0] - rounded[1] > plain

    @jax.jit
    def ask(inside, values):
        return training.gradient_sum(
            lambda w, x: w * x,
            jnp.float32(0),
            values,
            inside,
            training.FlatClipping(1.0),
            jnp.float32(1),
            microbatch_size=width,
        )

    found = [ask(x, values) for x in inside]
    one, other = (_value(x.parts) for x in found)
    assert 0.9999 < (one - other) * float(found[0].unit) <= 1
    # And it is the sum: each record is cut by less than one unit.
    bounded = np.minimum(values.astype(np.float64), 1 - 1e-5)
    expected = math.fsum(bounded[inside[0]]) / float(found[0].unit)
    assert abs(one - expected) <= len(values) * (1 + 1e-5 / float(found[0].unit))


# ----------------------------------------------------------------------------- the sums


def _rows(number, dtype):
    """Entries of all sizes, many at the limit, and what is no number."""
    scale = 2.0 ** RANDOM.uniform(-40, 0, size=(number, 3))
    rows = (RANDOM.choice([-1, 1], size=(number, 3)) * scale).astype(dtype)
    rows[::3] = RANDOM.choice([-1, 1], size=rows[::3].shape)
    rows[1::7] = RANDOM.choice([np.nan, np.inf, -np.inf], size=rows[1::7].shape)
    return rows


def _expected(rows, factors, inside):
    """Products in the type of the rows, cut, added by Python."""
    products = rows[inside] * factors[inside, None].astype(rows.dtype)
    products = np.clip(products, -float(LIMIT - 16), float(LIMIT - 16))
    return np.trunc(products).astype(np.int64).astype(object).sum(axis=0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, "bfloat16", np.float16])
def test_a_thousand_orders_and_cuts_have_one_sum(dtype):
    number = 99
    rows = np.asarray(jnp.asarray(_rows(number, np.float64), dtype))
    wide = rows.astype(np.promote_types(rows.dtype, np.float32))
    factors = (2.0**28 * RANDOM.uniform(0.5, 1.1, number)).astype(np.float32)
    inside = np.isfinite(wide).all(axis=1) & (RANDOM.random(number) < 0.9)
    orders = np.stack([RANDOM.permutation(number) for _ in range(250)])
    cuts = RANDOM.random((250, number)) < RANDOM.random((250, 1))

    @jax.jit
    def ask(rows, factors, inside, orders, cuts):
        def one(order, cut):
            parts = [
                exact.sum_of_rows(rows[order], factors[order], inside[order] & x)
                for x in (cut, ~cut)
            ]
            return parts[0].plus(parts[1])

        return jax.vmap(one)(orders, cuts)

    found = _value(ask(jnp.asarray(wide), factors, inside, orders, cuts))
    assert np.all(found == _expected(wide, factors, inside))


def test_the_largest_sums_do_not_overflow():
    """2^16 records at the limit, and as many such parts as there may be records."""
    ask = jax.jit(exact.sum_of_rows)
    for sign in (-1, 1):
        rows = jnp.full((exact.WIDEST, 1), sign, jnp.float32)
        everywhere = jnp.ones(exact.WIDEST, bool)
        found = ask(rows, jnp.full(exact.WIDEST, np.inf, jnp.float32), everywhere)
        assert _value(found) == sign * exact.WIDEST * (LIMIT - 16)
        total = found
        for _ in range(14):  # doubled up to 2^30 records
            total = total.plus(total)
        assert _value(total) == sign * 2**30 * (LIMIT - 16)


def test_sums_are_those_of_python_also_over_devices():
    most = 2**58
    one, other = _integers(most, 200), RANDOM.permutation(_integers(most, 200))
    np.testing.assert_array_equal(_value(_of(one).plus(_of(other))), one + other)
    small = RANDOM.integers(-(2**31), 2**31, 50).astype(np.int32)
    np.testing.assert_array_equal(_value(Whole.of_integers(jnp.asarray(small))), small)
    for devices in (1, 3, 512):
        records = min(2**30, exact.MOST_OVER_DEVICES // devices)
        rows = np.stack([_integers(LIMIT * records // devices, 7)] * devices)
        rows[1:] = RANDOM.permuted(rows[1:], axis=1)
        rows[:, -3:] = rows[0, -3:]
        share = functools.partial(Whole.over, axis="i", devices=devices)
        found = jax.vmap(share, axis_name="i")(_of(rows))
        expected = rows.astype(object).sum(axis=0)
        assert np.all(_value(found) == expected)


def test_noise_of_all_sizes_is_added_exactly_or_hides_the_sum():
    """What is released is a function of the sum of both, by whole numbers."""
    noise = RANDOM.normal(size=3000) * 10.0 ** RANDOM.uniform(-3, 19, 3000)
    noise = np.append(noise, [np.inf, -np.inf, np.nan, 0.0]).astype(np.float32)
    key, most = jax.random.key(0), 2**58
    zero = np.zeros(len(noise), object)
    ask = jax.jit(lambda whole: whole.with_noise(key, jnp.asarray(noise)))
    alone, end = _value(ask(_of(zero))), 2**59
    # But for the blur of a few digits it is the noise, rounded.
    within = np.abs(noise) < 0.99 * end
    np.testing.assert_allclose(
        alone[within].astype(np.float64), noise[within], rtol=3e-7, atol=1
    )
    assert alone[np.isnan(noise)] == end
    for number in (1, -17, most, -most):
        found = _value(ask(_of(zero + number)))
        assert np.all(np.abs(found) <= end)
        plain = (np.abs(found) < end) & (np.abs(alone) < end)
        assert np.all((found == alone + number)[plain])
        assert np.all((found == np.clip(alone + number, -end, end))[within])
        cut = ~(np.abs(noise) < 2.0**60)
        assert np.all(found[cut] == alone[cut])
        assert np.all(np.abs(alone[cut]) == end)


def test_noise_has_no_gaps_where_floating_point_has():
    """Else the last digits of what is released would tell the sum."""
    noise = jnp.asarray(RANDOM.normal(size=40_000) * 2.0**29, jnp.float32)
    last = _value(Whole.zeros(noise.shape).with_noise(jax.random.key(1), noise)) % 16
    plain = np.asarray(noise, np.float64)
    assert np.mean(plain[np.abs(plain) > 2.0**28] % 16 == 0) > 0.99
    counts = np.bincount(last.astype(int)[np.abs(plain) > 2.0**28], minlength=16)
    mean = counts.sum() / 16
    assert np.all(np.abs(counts - mean) < 5 * np.sqrt(mean))


# -------------------------------------------------------------------------- the lengths


@pytest.mark.parametrize("size", [1, 2, 64, 65, 1000, 4099, 300_000])
def test_lengths_are_never_too_small(size):
    """Also where a sum from left to right stays at its first term."""
    rows = RANDOM.normal(size=(4, size)).astype(np.float32)
    rows[1] = 1.0
    rows[2, 0], rows[2, 1:] = 1.0, 2.0**-12.5
    rows[3] *= np.exp(RANDOM.uniform(-30, 0, size))
    found = np.asarray(jax.jit(exact.length)(rows), np.float64)
    double = rows.astype(np.float64)
    true = np.asarray([math.sqrt(math.fsum(x * x)) for x in double])
    assert np.all(found >= true)
    assert np.all(found <= true * (1 + 200 * 2.0**-24))
    if size == 300_000:
        naive = np.sqrt(np.cumsum(np.square(rows[2]))[-1])
        assert naive < 0.999 * true[2]


@pytest.mark.parametrize("exponent", [-60, -41, -1, 0, 1, 39, 60])
def test_units_are_powers_of_two(exponent):
    for number in np.nextafter(
        np.float32(2.0**exponent), np.asarray([0, 9e30], np.float32)
    ):
        unit = float(exact.unit_of(jnp.float32(number)))
        assert math.frexp(unit)[0] == 0.5
        assert LIMIT / 2 <= float(number) / unit < LIMIT


# ------------------------------------------------------------------- one record's share


RULES = [
    training.FlatClipping,
    training.PerLayerClipping,
    functools.partial(training.AdaptiveClipping, count_noise=9.0),
]


def _sum(clipping, rows, inside, norm):
    """Of gradients that are the records themselves, each of two arrays."""
    return training.gradient_sum(
        lambda w, x: w[0] @ x[:3] + w[1] @ x[3:],
        (jnp.zeros(3, rows.dtype), jnp.zeros(4, rows.dtype)),
        rows,
        inside,
        clipping,
        norm,
        microbatch_size=8,
    )


_ask = jax.jit(_sum)


@pytest.mark.parametrize("rule", RULES)
def test_neighbors_differ_by_the_norm_whatever_its_size_and_theirs(rule):
    """Norms near the ends of what is allowed, gradients up to the ends of float32."""
    inside = np.ones(20, bool)
    for norm in (2.0**-40, 1e-9, 0.7, 2.0**40):
        clipping = rule(norm)
        start = clipping.start()
        rows = RANDOM.normal(size=(20, 7))
        rows *= norm * 10.0 ** RANDOM.uniform(-9, 12, size=(20, 1))
        rows[3:6] = np.asarray([[norm * 1e-4], [0.0], [np.nan]])
        rows = jnp.asarray(rows, jnp.float32)
        with np.errstate(all="ignore"):
            whole = _ask(clipping, rows, inside, start)
        most, largest = float(clipping.sensitivity(start, 2)), 0.0
        for out in range(0, 20, 3):
            for other in (rows.at[out].set(0.0), rows.at[out].set(np.nan)):
                found = _ask(clipping, other, inside, start)
                pairs = zip(whole.parts, found.parts, strict=True)
                moved = np.concatenate([_value(x) - _value(y) for x, y in pairs])
                length = math.sqrt(int(np.sum(moved * moved))) * float(whole.unit)
                assert length <= most
                largest = max(largest, length)
                excess = [int(x.kept) - int(x.scaled) for x in (whole, found)]
                assert abs(excess[0] - excess[1]) <= 1
        assert largest > 0.5 * most
        assert int(whole.kept) + int(whole.scaled) == 18
        assert int(whole.size) == 19


def test_short_gradients_are_not_made_long_by_automatic_clipping():
    clipping = training.AutomaticClipping(2.0**-40)
    for size in (1e-12, 1e-16, 1e-20, 1e-25, 1e-40):
        rows = jnp.full((1, 7), size, jnp.float32)
        found = _ask(clipping, rows, np.ones(1, bool), clipping.start())
        length = np.linalg.norm(np.concatenate(jax.tree.leaves(found.total)))
        assert length <= min(1, 8 * size / 2.0**-40)


@pytest.mark.parametrize("bad", [0.0, -1.0, 9e-13, 1.2e12, np.inf, np.nan])
def test_norms_for_which_nothing_was_proved_are_refused(bad):
    message = r"must be in \[2\^-40, 2\^40\], about 1e-12 to 1e12, got"
    rows, inside = jnp.ones((2, 7), jnp.float32), np.ones(2, bool)
    asks = [
        lambda: training.FlatClipping(bad),
        lambda: training.PerLayerClipping(bad),
        lambda: training.AutomaticClipping(bad),
        lambda: training.AdaptiveClipping(bad, count_noise=9.0),
        lambda: _sum(training.FlatClipping(1.0), rows, inside, jnp.float32(bad)),
    ]
    for ask in asks:
        with pytest.raises(ValueError, match=message):
            ask()


def test_a_norm_stays_within_its_range_whatever_the_noise_is():
    clipping = training.AdaptiveClipping(1.0, count_noise=1.0, learning_rate=5.0)
    keys = jax.random.split(jax.random.key(0), 40)
    for excess, end in ((100, 2.0**-40), (-100, 2.0**40)):

        def one(norm, key, excess=excess):
            found = clipping.next_norm(norm, key, jnp.int32(excess), 100.0)
            return found, found

        last, _ = jax.lax.scan(one, clipping.start(), keys)
        assert float(last) == end


def test_counts_are_exact_where_float32_is_not():
    """16,777,217 is no number there; with hardly any noise it is still told apart."""
    clipping = training.AdaptiveClipping(1.0, count_noise=1e-3, learning_rate=1.0)
    norms = [
        float(
            clipping.next_norm(
                jnp.float64(1.0), jax.random.key(0), jnp.int32(2**24 + x), 2.0**24
            )
        )
        for x in range(3)
    ]
    steps = np.diff(np.log(norms)) * 2.0**25
    np.testing.assert_allclose(steps, -1.0, rtol=1e-6)
