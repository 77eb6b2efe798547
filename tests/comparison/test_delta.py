"""The Delta-divergence: reference values, axioms, certificates, derivatives."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from programs import jitted
from reference import comparison_checks
from scipy.stats import norm

import fdp_jax as fdp
from fdp_jax.comparison import symmetrized_divergence

mp: Any = mpmath.mp.clone()
CHECKS = comparison_checks()
GAUSS, LAPLACE, PURE = fdp.Gaussian(1.0), fdp.Laplace(1.0), fdp.PureDP(1.0)
few = settings(max_examples=12, deadline=None)
scale = st.floats(0.3, 4.0)


def dpsgd(sigma, prob, steps):
    return fdp.DPSGD(
        noise_multiplier=float(sigma), sampling_prob=prob, num_steps=float(steps)
    )


def contained(found, truth, slack=0.0):
    return found.lower - slack <= truth <= found.upper + slack


FIG1_A = fdp.Gaussian(1 / CHECKS["fig1like.mu"]["value"])
FIG1_B = dpsgd(CHECKS["fig1like.sigma"]["value"], 0.1, 1)
EXACT = {
    "fig3.gauss_lap": (GAUSS, LAPLACE),
    "fig3.lap_gauss": (LAPLACE, GAUSS),
    "gauss.mu1_mu2": (GAUSS, fdp.Gaussian(0.5)),
    "gauss.mu2_mu1": (fdp.Gaussian(0.5), GAUSS),
    "rr1.G1": (GAUSS, PURE),
    "G1.rr1": (PURE, GAUSS),
    "fed.1_.05__1_0": (PURE, fdp.ApproxDP(epsilon=1.0, delta=0.05)),
    "fig1like.delta_A_B": (FIG1_A, FIG1_B),
    "fig1like.delta_B_A": (FIG1_B, FIG1_A),
}


@pytest.mark.parametrize("name", EXACT)
def test_closed_forms_to_twelve_digits(name):
    truth = CHECKS[name]["value"]
    found = fdp.delta_divergence(*EXACT[name])
    np.testing.assert_allclose(found.value.estimate, truth, rtol=1e-12, atol=1e-15)
    assert contained(found.value, truth, 1e-15)
    assert int(found.value.status) == fdp.Status.TIGHT
    assert found.value.upper - found.value.lower < 1e-10


def test_symmetrized_is_the_larger_one():
    found = fdp.delta_divergence(GAUSS, LAPLACE)
    truth = CHECKS["fig3.sym"]["value"]
    np.testing.assert_allclose(found.symmetrized.estimate, truth, rtol=1e-12)
    assert float(found.attained_by) == -1
    assert contained(found.symmetrized, truth)


FIG6, FIG7 = dpsgd(0.5415096, 0.01, 500), dpsgd(0.6, 0.01, 100)
FIG5 = dpsgd(2.0, 0.08192, 1413)


def _composed():
    for name, entry in CHECKS.items():
        params = entry["params"]
        if name.startswith("fig6.p"):
            base = FIG6
        elif name.startswith("fig7.Delta"):
            base = FIG7
        elif name.startswith("fig5.s"):
            base = FIG5
        else:
            continue
        steps = params.get("N", params.get("T"))
        yield name, base, dpsgd(params["sigma"], params["p"], steps)


@pytest.mark.parametrize("case", list(_composed()), ids=lambda c: c[0])
def test_composed_dpsgd(case):
    name, base, other = case
    entry = CHECKS[name]
    found = fdp.delta_divergence(base, other)
    # The reference inverts characteristic functions; 5 to 7 digits are printed.
    np.testing.assert_allclose(found.value.estimate, entry["value"], rtol=1e-6)
    assert found.value.method == "contour"
    assert found.value.upper - found.value.lower < 1e-9
    np.testing.assert_allclose(found.prior, 0.5, atol=1e-6)


@pytest.mark.slow
def test_published_tightness_example():
    one, other = dpsgd(2.0, 9e-4, 1.4e6), dpsgd(3.0, 9e-4, 3.4e6)
    found = fdp.delta_divergence(one, other)
    truth = CHECKS["tightness.Delta"]["value"]
    np.testing.assert_allclose(found.value.estimate, truth, rtol=1e-5)
    # Millions of steps multiply the error of one step's characteristic function.
    assert found.value.upper - found.value.lower < 1e-6


def test_reference_numbers_of_the_mechanisms():
    for name, run, epsilon in (
        ("fig6.base.delta8", FIG6, 8.0),
        ("fig6.sigma054.delta8", dpsgd(0.54, 0.01, 500), 8.0),
        ("fig7.base.delta4", FIG7, 4.0),
        ("fig5.base.delta8", FIG5, 8.0),
    ):
        value = float(run.delta(epsilon=epsilon))
        # The references have an absolute error of about 5e-10 (the grid engine, which
        # is independent, agrees with the contour one to more digits).
        np.testing.assert_allclose(value, CHECKS[name]["value"], atol=1e-9)
    error = 0.5 * (1 - float(FIG6.advantage()))
    np.testing.assert_allclose(error, CHECKS["fig6.base.bayes"]["value"], rtol=1e-7)
    long = dpsgd(2.0, 9e-4, 1.4e6)
    truth = CHECKS["tightness.adv_M"]["value"]
    np.testing.assert_allclose(float(long.advantage()), truth, rtol=1e-6)


def test_one_direction_against_a_brute_force_maximum():
    one, other = dpsgd(1.0, 0.5, 1), dpsgd(0.6, 0.2, 1)
    prior = 1 / (1 + np.exp(-np.linspace(-3, 3, 64)))
    gaps = one.remove.bayes_error(prior=prior) - other.remove.bayes_error(prior=prior)
    found = fdp.delta_divergence(one.remove, other.remove)
    assert float(jnp.max(gaps)) <= found.value.upper
    assert float(jnp.max(gaps)) > found.value.lower - 1e-3
    assert abs(float(found.prior) - 0.5) > 1e-3


def test_exchanged_directions_are_mirror_images():
    one, other = dpsgd(1.0, 0.5, 1), dpsgd(0.6, 0.2, 1)
    found = fdp.delta_divergence(one.remove, other.remove)
    mirrored = fdp.delta_divergence(one.add, other.add)
    np.testing.assert_allclose(
        found.value.estimate, mirrored.value.estimate, rtol=1e-10
    )
    np.testing.assert_allclose(found.prior, 1 - mirrored.prior, atol=1e-6)


# --------------------------------------------------------------------------- axioms


@few
@given(st.tuples(scale, scale, scale))
def test_metric_and_directed_triangle(scales):
    a, b, c = fdp.Gaussian(scales[0]), fdp.Laplace(scales[1]), fdp.Gaussian(scales[2])
    ab, bc = fdp.delta_divergence(a, b), fdp.delta_divergence(b, c)
    ac = fdp.delta_divergence(a, c)
    for found in (ab, bc, ac):
        assert 0 <= found.value.lower <= found.value.estimate <= found.value.upper
        assert found.value.upper <= 0.5
        assert found.symmetrized.lower >= found.value.lower
    assert ac.value.lower <= ab.value.upper + bc.value.upper
    assert ac.symmetrized.lower <= ab.symmetrized.upper + bc.symmetrized.upper
    ca = fdp.delta_divergence(c, a)
    np.testing.assert_allclose(
        ac.symmetrized.estimate, ca.symmetrized.estimate, atol=1e-13
    )


@few
@given(st.tuples(scale, scale, st.floats(0.0, 0.3)))
def test_bounds_hold_at_random_priors(drawn):
    a, b = fdp.Gaussian(drawn[0]), fdp.Laplace(drawn[1])
    upper = float(fdp.delta_divergence(a, b).value.upper)
    prior = np.linspace(0.01, 0.99, 99)
    gap = a.bayes_error(prior=prior) - b.bayes_error(prior=prior)
    assert float(jnp.max(gap)) <= upper + 1e-14


@few
@given(st.tuples(scale, st.floats(0.1, 1.0)))
def test_post_processing_only_shrinks(drawn):
    # With probability 1 - t the output is replaced by nothing: delta is t delta.
    sigma, t = drawn
    whole = fdp.Gaussian(sigma)
    priors = np.linspace(0.05, 0.95, 19)
    least = np.minimum(priors, 1 - priors)
    processed = t * np.asarray(whole.bayes_error(prior=priors)) + (1 - t) * least
    base = np.asarray(LAPLACE.bayes_error(prior=priors))
    most = float(fdp.delta_divergence(LAPLACE, whole).value.upper)
    assert np.max(base - processed) <= most + 1e-14


def test_subadditive_under_composition():
    a, b = fdp.Gaussian(1.0), fdp.Gaussian(0.8)
    one = float(fdp.delta_divergence(a, b).value.lower)
    for count in (2, 3):
        both = fdp.Gaussian(1 / np.sqrt(count)), fdp.Gaussian(0.8 / np.sqrt(count))
        many = float(fdp.delta_divergence(*both).value.estimate)
        assert many <= count * one + 1e-12
    common = fdp.compose(a, LAPLACE), fdp.compose(b, LAPLACE)
    assert float(fdp.delta_divergence(*common).value.estimate) <= one + 1e-10


def test_composition_can_change_the_order():
    twice, mixed = LAPLACE.repeat(2), fdp.compose(LAPLACE, GAUSS)
    gap = 0.5 * (twice.advantage() - mixed.advantage())
    truth = CHECKS["compose.G1L_LL.at0"]["value"]
    np.testing.assert_allclose(float(gap), truth, rtol=1e-6)
    assert LAPLACE.advantage() > GAUSS.advantage()


def test_few_steps_are_compared_as_on_the_grid():
    # Contours have Chernoff bounds only at some priors; at the worst they are sharp.
    one, other = dpsgd(1.0, 0.01, 10), dpsgd(0.8, 0.01, 10)
    found = fdp.delta_divergence(one, other)
    value = found.value
    ends = [run.using("grid").bounds(prior=found.prior) for run in (one, other)]
    assert value.upper - value.lower < 1.1 * sum(x.upper - x.lower for x in ends)
    assert value.upper >= ends[0].lower - ends[1].upper
    assert value.lower <= ends[0].upper - ends[1].lower


def test_identical_guarantees_have_no_distance():
    assert float(symmetrized_divergence(GAUSS, GAUSS)) == 0.0


@pytest.mark.parametrize("other", [1.0, 1.0 - 1e-9, 0.999, 0.8])
def test_gaussian_noise_however_it_is_made_up(other):
    """The largest gap is that of the advantages, halved: also where it is tiny."""
    first = other * 1.3
    second = other * (1 - 1 / 1.69) ** -0.5
    twice = fdp.compose(fdp.Gaussian(first), fdp.Gaussian(second))
    found = fdp.delta_divergence(GAUSS, twice)
    with mp.workdps(30):
        truth = float(mp.ncdf(0.5 / mp.mpf(other)) - mp.ncdf(0.5))
    assert found.value.lower <= truth + 1e-15
    assert truth <= found.value.upper <= truth * (1 + 2e-7) + 1.1e-12
    assert float(fdp.delta_divergence(twice, GAUSS).value.upper) < 1.1e-12
    direct = fdp.delta_divergence(fdp.tradeoff.Gaussian(1.0), twice).value
    assert truth <= direct.upper <= truth * (1 + 2e-7) + 1.1e-12


def test_other_identical_guarantees():
    assert float(symmetrized_divergence(FIG6, FIG6)) == 0.0


# -------------------------------------------------------------------- transformations


def test_gradient_of_closed_forms():
    def value(sigma, scale):
        a, b = fdp.Laplace(scale), fdp.Gaussian(sigma)
        return fdp.delta_divergence(a, b).value.estimate

    found = jax.grad(value, argnums=(0, 1))(1.1, 0.9)
    step = 1e-6
    for i, gradient in enumerate(found):
        shift = step * (np.arange(2) == i)
        up, down = (
            value(*(np.array([1.1, 0.9]) + shift)),
            value(1.1 - shift[0], 0.9 - shift[1]),
        )
        np.testing.assert_allclose(gradient, (up - down) / (2 * step), rtol=1e-6)


def test_gradient_is_zero_where_the_divergence_is():
    def both(s):
        found = fdp.delta_divergence(fdp.Gaussian(s), GAUSS)
        return jnp.stack([found.value.estimate, found.symmetrized.upper])

    direct, larger = jax.jacfwd(both)(0.5)
    assert direct == 0.0
    expected = (both(0.5 + 1e-6) - both(0.5 - 1e-6))[1] / 2e-6
    np.testing.assert_allclose(larger, expected, rtol=1e-6)


@pytest.mark.slow
def test_gradient_of_composed_dpsgd():
    def value(sigma, prob):
        other = fdp.DPSGD(noise_multiplier=sigma, sampling_prob=prob, num_steps=534.0)
        return fdp.delta_divergence(FIG6, other).value.upper

    found = jax.grad(value, argnums=(0, 1))(0.876, 0.04)
    slopes = [
        (value(0.876 + 1e-5, 0.04) - value(0.876 - 1e-5, 0.04)) / 2e-5,
        (value(0.876, 0.04 + 1e-6) - value(0.876, 0.04 - 1e-6)) / 2e-6,
    ]
    np.testing.assert_allclose(found, slopes, rtol=1e-5)


def test_vmap_and_float32_agree_with_plain_calls():
    value = lambda s: fdp.delta_divergence(fdp.Gaussian(s), LAPLACE).value
    scales = np.array([0.7, 1.0, 1.6])
    batch = jitted(jax.vmap(value))(scales)
    single = [value(s) for s in scales]
    np.testing.assert_allclose(
        batch.estimate, [s.estimate for s in single], rtol=1e-12, atol=1e-15
    )
    with jax.enable_x64(False):
        rough = value(1.0)
    assert rough.estimate.dtype == jnp.float32
    assert rough.lower <= single[1].lower <= single[1].upper <= rough.upper


def test_curves_agree_with_mechanisms():
    run = fdp.delta_divergence(GAUSS, fdp.Gaussian(0.8)).value
    curves = fdp.delta_divergence(GAUSS.curve(), fdp.Gaussian(0.8).curve()).value
    assert curves.lower <= run.estimate <= curves.upper
    np.testing.assert_allclose(curves.estimate, run.estimate, rtol=1e-3)


# ----------------------------------------------------------------------------- errors


def test_mixed_relations_and_directions_are_refused():
    with pytest.raises(ValueError, match="ADD_OR_REMOVE_ONE and REPLACE_ONE"):
        fdp.delta_divergence(GAUSS, fdp.RandomizedResponse(1.0))
    with pytest.raises(ValueError, match=r"take \.remove"):
        fdp.delta_divergence(FIG6, FIG7.remove)
    with pytest.raises(TypeError, match="b must be a mechanism"):
        fdp.delta_divergence(GAUSS, 1.0)
    with pytest.raises(ValueError, match="noise_multiplier"):
        fdp.delta_divergence(GAUSS, fdp.Gaussian())


def _gap_at_kink(mu_laplace, mu):
    """(G_mu - L) / (1 + e^eps) and its derivatives where L's profile ends."""
    e, half = mu_laplace, 0.5 * mu
    far = e / mu
    tail = np.exp(e) * norm.cdf(-half - far)
    delta, odds = norm.cdf(half - far) - tail, 1 + np.exp(e)
    slope = -(tail * odds + np.exp(e) * delta) / odds**2
    return delta / odds, (slope, norm.pdf(half - far) / odds)


@jitted
@functools.partial(jax.value_and_grad, argnums=(0, 1))
def _gap(a, b):
    """Of every place in one program."""
    pair = fdp.tradeoff.Laplace(a), fdp.tradeoff.Gaussian(b)
    return fdp.delta_divergence(*pair).value.estimate


@pytest.mark.parametrize("place", [(1.25, 1.0), (0.4, 0.5), (2.25681602, 0.51828166)])
def test_gradient_where_the_worst_prior_is_a_kink_that_moves(place):
    found, slopes = _gap(*place)
    truth, derivatives = _gap_at_kink(*place)
    assert found == pytest.approx(truth, rel=1e-3)
    np.testing.assert_allclose(slopes, derivatives, rtol=1e-8)
