# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Canonical noise and private tests
#
# Noise is wasted if it gives more privacy than was asked for. The canonical noise of a
# trade-off function f (Awan and Vadhan, "Canonical noise distributions and private
# hypothesis tests", Annals of Statistics 2023) spends f exactly, for every f. With it come
# the most powerful private tests of a proportion, exact p-values and confidence
# intervals.
#
# Every number in the text is checked by an assertion in the code below it.

# %%
import jax
import matplotlib.pyplot as plt
import numpy as np
from scipy import stats

import fdp_jax as fdp
from fdp_jax import inference

# Accounting is not training: double precision costs nothing here.
jax.config.update("jax_enable_x64", True)

CHECKED = 0


def check(value, stated, tolerance):
    """Fail unless the value is the one stated in the text."""
    global CHECKED
    assert abs(float(value) - stated) <= tolerance, (float(value), stated)
    CHECKED += 1


# %% [markdown]
# ## Noise for any f
#
# Four guarantees and their canonical noise for a statistic of sensitivity 1. For
# (epsilon, 0) it is Tulap noise, with a variance of 1.9247 at epsilon = 1, where Laplace
# noise has 2. With delta = 0.05 its support ends, at 2.8868. All of them are uniform on
# [-1/2, 1/2].

# %%
guarantees = {
    "(1, 0)": fdp.tradeoff.ApproxDP(epsilon=1.0, delta=0.0),
    "(1, 0.05)": fdp.tradeoff.ApproxDP(epsilon=1.0, delta=0.05),
    "1-GDP": fdp.tradeoff.Gaussian(1.0),
    "Laplace, 1": fdp.tradeoff.Laplace(1.0),
}
noises = {name: fdp.canonical_noise(f) for name, f in guarantees.items()}
check(noises["(1, 0)"].variance(), 1.924680521748918, 1e-12)
check(noises["(1, 0.05)"].support[1], 2.8867778792887676, 1e-12)
check(noises["(1, 0)"].quantile(0.999999), 13.124614736947926, 1e-9)

x = np.linspace(-4, 4, 1601)
figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
for name, noise in noises.items():
    axes[0].plot(x, noise.pdf(x), label=name)
axes[0].plot(x, stats.norm.pdf(x), ":", color="black", label="N(0, 1)")
axes[0].set(xlabel="noise", ylabel="density")
axes[0].legend(frameon=False, fontsize="small")
y = np.linspace(0, 30, 601)
for noise in noises.values():
    axes[1].plot(y, np.asarray(noise.log_sf(y)) / np.log(10))
axes[1].set(xlabel="noise", ylabel="log10 of the tail probability", ylim=(-100, 0))
plt.show()

# %% [markdown]
# "Exactly" can be checked: at a shift of one, the trade-off function of the noise is f, and
# at smaller shifts it lies above. For 1-GDP both the canonical construction and the normal
# law do it; they agree at all half-integers, as all canonical noise must.

# %%
for name, f in guarantees.items():
    assert fdp.noise.verify_canonical(noises[name].cdf, f, tolerance=1e-8).passed, name
normal = fdp.canonical_noise(guarantees["1-GDP"], log_concave=True)
half = np.arange(0, 12) / 2
np.testing.assert_allclose(noises["1-GDP"].sf(half), normal.sf(half), rtol=1e-10)
check(noises["1-GDP"].sf(6.0), 9.8658764503769814e-10, 1e-21)

# %% [markdown]
# ## Many canonical laws of one f
#
# They need not agree between the half-integers. If k steps of a function g, one after the
# other, give f (g is a k-th root of f under group privacy), canonical noise of g divided by
# k is canonical noise of f: at a shift of j / k it has the trade-off function of j steps of
# g, and between these more than that of the next one. The k-th root of μ-GDP is μ/k-GDP, so
# that k = 1, 2, 3, ... give ever other laws. They tend to the normal law, which is the
# log-concave one: for μ = 2 the variances are 0.251195, 0.250008 and 0.2500001 at k = 1, 2
# and 4. In the same way for Laplace: 0.505401, 0.500252, 0.500012. For (ε, 0) there is no
# other than Tulap noise.

# %%
families = {
    "2-GDP": (
        (fdp.tradeoff.Gaussian, stats.norm),
        (0.251194977225024, 0.250008126477039, 0.250000128633679),
    ),
    "Laplace, 2": (
        (fdp.tradeoff.Laplace, stats.laplace),
        (0.505401286913937, 0.500252427521237, 0.500012132930697),
    ),
}
alpha = np.linspace(0.001, 0.999, 999)
x = np.linspace(-2, 2, 1601)
figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
for ax, (name, ((family, law), variances)) in zip(axes, families.items(), strict=True):
    f, limit = family(2.0), law(scale=0.5)
    for k, variance in zip((1, 2, 4), variances, strict=True):
        noise = fdp.canonical_noise(family(2 / k), sensitivity=1 / k)
        # Definition 3.1: private at all shifts, exact at 1, the recursion, symmetry.
        assert fdp.noise.verify_canonical(noise.cdf, f).passed, (name, k)
        # At a shift of one f is the error of the tests at thresholds.
        beta = np.asarray(noise.cdf(noise.isf(alpha) - 1))
        truth = limit.cdf(limit.isf(alpha) - 1)
        np.testing.assert_allclose(beta, truth, rtol=0, atol=1e-12)
        np.testing.assert_allclose(noise.sf(half), limit.sf(half), rtol=1e-10)
        check(noise.variance(), variance, 1e-10)
        ax.plot(x, noise.pdf(x), label=f"k = {k}")
    ax.plot(x, limit.pdf(x), "k:", label="limit")
    ax.set(xlabel="noise", ylabel="density", title=name)
    ax.legend(frameon=False, fontsize="small")
plt.show()

# %% [markdown]
# ## Testing a proportion
#
# Of 30 records, 21.3 have a property after Tulap noise for epsilon = 1. Is the proportion
# one half? The exact two-sided p-value is 0.0407, and the 95 % interval is
# [0.5092, 0.8626]. No further privacy is spent for either.

# %%
tulap = noises["(1, 0)"]
p = inference.binomial_p_value(21.3, tulap, 30, 0.5)
low, high = inference.binomial_interval_from(21.3, tulap, 30, confidence=0.95)
print(float(p), float(low), float(high))
check(p, 0.040662003926875057, 1e-12)
check(low, 0.50920451341273927, 1e-9)
check(high, 0.86256046548508492, 1e-9)

# %% [markdown]
# How many records does privacy cost? The power of the best test of "one half or less"
# against 0.6 at level 5 %, with and without privacy: at n = 200 it is 0.8857 without,
# and less for every guarantee.

# %%
sizes = [20, 50, 100, 150, 200, 300, 400]


def public_power(n):
    """Power of the randomized test without privacy."""
    k = stats.binom.isf(0.05, n, 0.5)
    rest = (0.05 - stats.binom.sf(k, n, 0.5)) / stats.binom.pmf(k, n, 0.5)
    return stats.binom.sf(k, n, 0.6) + rest * stats.binom.pmf(k, n, 0.6)


figure, ax = plt.subplots(figsize=(6, 3.8), layout="constrained")
public = [public_power(n) for n in sizes]
check(public[sizes.index(200)], 0.8857, 5e-5)
ax.plot(sizes, public, "k.-", label="no privacy")
for name, noise in noises.items():
    power = [
        float(inference.binomial_power(noise, n, 0.5, 0.6, alpha=0.05)) for n in sizes
    ]
    ax.plot(sizes, power, ".-", label=name)
    assert np.all(np.asarray(power) < public)
    assert np.all(np.diff(power) > 0)
ax.set(xlabel="records", ylabel="power")
ax.legend(frameon=False, fontsize="small")
plt.show()
ten = inference.binomial_power(guarantees["1-GDP"], 10, 0.5, 0.7, alpha=0.05)
check(ten, 0.27720303880933761, 1e-11)

# %% [markdown]
# ## Comparing two proportions
#
# Two groups of 30, each count released with Tulap noise for epsilon = 1: is the second
# proportion larger? The test uses the exact law of the difference of the noisy
# proportions, at the common proportion that the same release estimates. A test that knows
# the noiseless total ("semi-private") bounds the power of every unbiased private one.
#
# Left: how often the hypothesis is rejected at level 10 % where both proportions are
# equal, in 250 simulated data sets each, beside the normal approximation with the noise's
# variance added. Right: the power against a first proportion of 0.3, below the
# bound (up to the error of the simulation).

# %%
n, runs, level = 30, 250, 0.1
rng = np.random.default_rng(3)
drawn = np.asarray(tulap.sample(jax.random.key(3), (runs, 2)))


@jax.jit
def p_values(released):
    ask = lambda z: inference.two_proportion_p_value(
        z[0], z[1], tulap, n, n, alternative="greater"
    )
    return jax.lax.map(ask, released)


def normal_p_values(released):
    pooled = np.clip(released.sum(axis=1) / (2 * n), 0, 1)
    variance = 2 * pooled * (1 - pooled) / n + 2 * float(tulap.variance()) / n**2
    return stats.norm.sf((released[:, 1] - released[:, 0]) / n / np.sqrt(variance))


def rejected(prob_x, prob_y):
    counts = [rng.binomial(n, prob, runs) for prob in (prob_x, prob_y)]
    released = np.stack(counts, axis=1) + drawn
    found = np.asarray(p_values(released)), normal_p_values(released)
    return [np.mean(p <= level) for p in found]


error = 4 * np.sqrt(0.25 / runs)
nulls = [0.05, 0.2, 0.35, 0.5]
false_alarms = np.asarray([rejected(prob, prob) for prob in nulls])
others = [0.4, 0.5, 0.6, 0.7]
powers = np.asarray([rejected(0.3, prob) for prob in others])
bound = [
    float(inference.semi_private_power(tulap, n, n, 0.3, prob, alpha=level))
    for prob in others
]
assert np.all(np.abs(false_alarms[1:, 0] - level) < 4 * np.sqrt(level / runs))
assert np.all(powers[:, 0] < np.asarray(bound) + error)
assert np.all(powers[:, 0] > np.asarray(bound) - 0.1 - error)

figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
axes[0].axhline(level, color="black", linewidth=0.8)
for j, name in enumerate(["private test", "normal approximation"]):
    axes[0].plot(nulls, false_alarms[:, j], ".-", label=name)
    axes[1].plot(others, powers[:, j], ".-", label=name)
axes[1].plot(others, bound, "k:", label="semi-private bound")
axes[0].set(xlabel="both proportions", ylabel="type I error", ylim=(0, 0.2))
axes[1].set(xlabel="second proportion", ylabel="power")
for ax in axes:
    ax.legend(frameon=False, fontsize="small")
plt.show()

# %% [markdown]
# ## A release in one call
#
# Everything at once: noise is drawn, and what is returned may be published.

# %%
release = inference.binomial_test(jax.random.key(7), 62, 100, 0.5, guarantees["(1, 0)"])
print(release)
assert release.interval[0] < release.estimate < release.interval[1]

# %% [markdown]
# Samples are floating-point numbers. For a release against adversaries use
# `fdp.noise.rounded_noise` and draw with exact integer arithmetic (Mironov 2012).

# %%
print(CHECKED, "numbers checked")
