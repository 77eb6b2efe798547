"""Sums of weighted rotations against sums with more digits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdp_jax._internal._waves import wave_products, wave_sums


@pytest.mark.parametrize("m", [8, 16, 24])
@pytest.mark.parametrize("start", [0.0, 37.5])
def test_waves_are_sums_over_points(m, start):
    """Within the rounding that terms of the stated sizes have, at every frequency."""
    rng = np.random.default_rng(m)
    weights, value = rng.uniform(size=(2, 50)) ** 4, 3 * rng.standard_normal(50)
    step = 0.01
    make = jax.jit(lambda w, x, t, h: wave_sums(wave_products(w, x, t, h, m), m))
    found = make(*map(jnp.asarray, (weights, value, start, step)))
    total, versine, sine = map(np.asarray, found)
    wide = np.longdouble
    times = wide(start) + wide(step) * np.arange(m * m)
    angle = times[:, None] * value.astype(wide)
    exact = [
        weights.astype(wide) @ x.T for x in (-2 * np.sin(angle / 2) ** 2, np.sin(angle))
    ]
    np.testing.assert_allclose(total, np.sum(weights, axis=1), rtol=1e-14)
    unit = np.finfo(float).eps * (50 + 16)
    mean = weights @ np.abs(value)
    bound = np.minimum(2.5 * total[:, None], 2 * times * mean[:, None])
    # Angles are rounded, too.
    bound = unit * bound + 4 * np.finfo(float).eps * times * mean[:, None]
    for ours, theirs in zip((versine, sine), exact, strict=True):
        assert ours.shape == (2, m * m)
        assert np.all(np.abs(ours - theirs) <= bound)
