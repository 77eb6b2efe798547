import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from fdp_jax._internal import (
    _arithmetic as arithmetic,
    _mills as moments,
    _special as special,
)


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True), mp.workdps(60):
        yield


def exact_moments(x, order):
    """h_0..h_order at x, by the upward recursion with enough digits to spare."""
    x = mp.mpf(float(x))
    lost = 20 + int(3 * (order + 1) * mp.log10(abs(x) + 1))
    with mp.workdps(60 + max(lost, 0)):
        moments = [mp.sqrt(mp.pi / 2) * mp.exp(x * x / 2) * mp.erfc(x / mp.sqrt(2))]
        moments.append(1 - x * moments[0])
        for k in range(1, order):
            moments.append(k * moments[k - 1] - x * moments[k])
        return moments


def exact_log_ndtr(x):
    x = mp.mpf(float(x))
    if x < 0:
        return mp.log(exact_moments(-x, 0)[0]) - x * x / 2 - mp.log(mp.sqrt(2 * mp.pi))
    return mp.log1p(-mp.erfc(x / mp.sqrt(2)) / 2)


def largest_error(values, exact):
    return max(
        float(abs((mp.mpf(float(v)) - t) / t))
        for v, t in zip(np.asarray(values), exact, strict=True)
    )


def test_moments_of_every_order():
    x = np.concatenate([np.linspace(0, 12, 25), np.logspace(-9, 5, 20)])
    exact = [exact_moments(v, 6) for v in x]
    for order in range(7):
        values = jax.jit(lambda v, k=order: moments.mills_moment(k, v))(x)
        assert largest_error(values, [e[order] for e in exact]) < 3e-15


def test_moments_at_infinity():
    x = jnp.asarray([jnp.inf, 1e300])
    np.testing.assert_array_equal(moments.mills_moment(0, x), [0, 1e-300])
    np.testing.assert_array_equal(moments.mills_moment(1, x), [0, 0])


def test_log_ndtr_and_two_derivatives():
    # Includes [5, 8], where the library function is off by several percent.
    x = np.concatenate([np.linspace(-45, 37, 165), [-1e3, -1e5, -1e-8, 1e-8]])
    values = jax.jit(special.log_ndtr)(x)
    assert largest_error(values, [exact_log_ndtr(v) for v in x]) < 2e-15

    def derivatives(v):
        if v < 0:
            m, first = exact_moments(-v, 1)
            return 1 / m, -first / m**2
        v = mp.mpf(float(v))
        hazard = mp.npdf(v) / (1 - mp.erfc(v / mp.sqrt(2)) / 2)
        return hazard, -hazard * (v + hazard)

    slope = jax.grad(special.log_ndtr)
    exact = [derivatives(v) for v in x]
    assert largest_error(jax.jit(jax.vmap(slope))(x), [e[0] for e in exact]) < 3e-15
    second = jax.jit(jax.vmap(jax.grad(slope)))(x)
    assert largest_error(second, [e[1] for e in exact]) < 4e-15


def test_log_ndtr_far_out():
    x = jnp.asarray([-jnp.inf, -1e150, 0.0, 50.0, jnp.inf])
    expected = [-np.inf, -5e299, -np.log(2.0), 0.0, 0.0]
    np.testing.assert_allclose(jax.jit(special.log_ndtr)(x), expected, rtol=1e-15)
    slopes = jax.jit(jax.vmap(jax.grad(special.log_ndtr)))(x)
    np.testing.assert_allclose(slopes[1:4], [1e150, np.sqrt(2 / np.pi), 0], rtol=1e-14)


def test_mills_difference_for_any_width():
    rng = np.random.default_rng(0)
    a = np.concatenate([rng.uniform(0, 10, 40), 10 ** rng.uniform(-8, 4, 40)])
    width = 10 ** rng.uniform(-20, 3, 80)

    def exact(a, w):
        with mp.workdps(140):
            a, w = mp.mpf(float(a)), mp.mpf(float(w))
            m = lambda x: mp.exp(x * x / 2) * mp.erfc(x / mp.sqrt(2))
            return mp.sqrt(mp.pi / 2) * (m(a) - m(a + w))

    truth = [exact(*pair) for pair in zip(a, width, strict=True)]
    assert largest_error(jax.jit(moments.mills_parts)(a, width)[0], truth) < 5e-15


@pytest.mark.parametrize(
    ("function", "exact", "points"),
    [
        (
            special.log1mexp,
            lambda x: mp.log(-mp.expm1(-x)) if x < 30 else mp.log1p(-mp.exp(-x)),
            np.logspace(-300, 2.8, 60),
        ),
        (special.log1p, mp.log1p, np.linspace(-0.9999, 3, 400)),
    ],
    ids=["log1mexp", "log1p"],
)
def test_logarithms(function, exact, points):
    points = points[points != 0]
    truth = [exact(mp.mpf(float(x))) for x in points]
    assert largest_error(jax.jit(function)(points), truth) < 1e-15


def test_log_ndtri_inverts_log_ndtr():
    rng = np.random.default_rng(1)
    log_p = np.concatenate(
        [-(10 ** rng.uniform(-300, 299, 80)), np.log(rng.uniform(0, 1, 40))]
    )
    z = np.asarray(jax.jit(special.log_ndtri)(log_p))
    for value, target in zip(z, log_p, strict=True):
        target = mp.mpf(float(target))
        # Backward error in terms of z, on the side of the smaller probability.
        if value > 0:
            target = mp.log(-mp.expm1(target))
        far = mp.mpf(float(abs(value)))
        if far > 1e5:
            error = (mp.sqrt(-2 * target) - far) / far
            assert abs(error) < 1e-9  # only the leading term is compared here
            continue
        moment = exact_moments(far, 0)[0]
        error = (exact_log_ndtr(-far) - target) * moment
        assert abs(error) < 2e-15 * max(far, 1)


def test_log_ndtri_limits_and_derivatives():
    inverse_64 = jax.jit(special.log_ndtri)
    ends = jnp.asarray([-jnp.inf, 0.0])
    np.testing.assert_array_equal(special.log_ndtri(ends), [-np.inf, np.inf])
    assert np.isfinite(jax.jit(jax.vmap(jax.grad(special.log_ndtri)))(ends)).all()
    inverse = lambda u: mp.findroot(
        lambda z: mp.log(mp.ncdf(z)) - u, float(inverse_64(float(u)))
    )
    first = jax.jit(jax.grad(special.log_ndtri))
    second = jax.jit(jax.grad(jax.grad(special.log_ndtri)))
    for point in (-20.0, -1.0, -0.1):
        np.testing.assert_allclose(first(point), float(mp.diff(inverse, point)), 1e-12)
        exact = float(mp.diff(inverse, point, 2))
        np.testing.assert_allclose(second(point), exact, rtol=1e-12)


def test_ndtri_from_logs_uses_the_smaller_tail():
    z = special.ndtri_from_logs(jnp.log1p(-1e-300), jnp.log(1e-300))
    np.testing.assert_allclose(z, 37.0471, rtol=1e-5)
    np.testing.assert_allclose(special.log_ndtr(-z), np.log(1e-300), rtol=1e-15)


def test_dtype_is_kept():
    x = jnp.float32(-6.0)
    value = special.log_ndtr(x)
    assert value.dtype == jnp.float32
    np.testing.assert_allclose(value, special.log_ndtr(-6.0), rtol=3e-7)
    assert special.log_ndtr(-6).dtype == jnp.float64


def test_two_product_is_exact():
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(2, 50)) * 10 ** rng.uniform(-30, 30, (2, 50))
    product, error = jax.jit(arithmetic.two_product)(a, b)
    for u, v, p, e in zip(a, b, np.asarray(product), np.asarray(error), strict=True):
        assert mp.mpf(u) * mp.mpf(v) == mp.mpf(float(p)) + mp.mpf(float(e))
