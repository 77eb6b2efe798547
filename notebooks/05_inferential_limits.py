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
# # What nobody can infer
#
# Differential privacy bounds what anybody learns from an output, whatever the model, the
# prior and the test: Bailie and Gong, "Differential privacy: general inferential limits via
# intervals of measures" (ISIPTA 2023). Here are their statements with numbers, with the
# conditions on the supports that they need, and for any trade-off function.
#
# Every number in the text is checked by an assertion in the code below it.

# %%
import jax
import matplotlib.pyplot as plt
import numpy as np
from scipy import stats

import fdp_jax as fdp
from fdp_jax import limits

# Accounting is not training: double precision costs nothing here.
jax.config.update("jax_enable_x64", True)

CHECKED = 0


def check(value, stated, tolerance):
    """Fail unless the value is the one stated in the text."""
    global CHECKED
    assert abs(float(value) - stated) <= tolerance, (float(value), stated)
    CHECKED += 1


# %% [markdown]
# ## Posteriors stay near the prior
#
# A hypothesis about one record has prior probability 0.1. After any output of a
# (1, 0)-private release its posterior is between 0.0393 and 0.2320: the logit moves by at
# most one. About ten records at once the bound is much wider, and if the model allows data
# sets that no path of neighbors joins, there is none.

# %%
low, high = limits.posterior_bounds(0.1, epsilon=1.0, distance=1, connected=True)
check(low, 0.039270, 1e-6)
check(high, 0.231969, 1e-6)
assert limits.posterior_bounds(0.1, epsilon=1.0, distance=1, connected=False)[1] == 1

theta = np.linspace(0.001, 0.999, 400)
density = stats.beta.pdf(theta, 3, 5)
figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
fdp.plot.posterior_band(theta, density, axes[0], epsilon=0.1, distance=5)
fdp.plot.power_envelope(fdp.tradeoff.Gaussian(0.5), axes[1])
plt.show()

# %% [markdown]
# ## Tests have little power
#
# A test at level 5 % about a model whose data sets differ in at most three records has a
# power of at most 0.7680 after a (1, 0)-private output, and of at most 0.4424 after a
# 0.5-GDP one: for the Gaussian that is Φ(Φ⁻¹(0.05) + 1.5).

# %%
pure, gaussian = (
    fdp.tradeoff.ApproxDP(epsilon=1.0, delta=0.0),
    fdp.tradeoff.Gaussian(0.5),
)
one = limits.power_bound(0.05, pure, distance=3, connected=True)
other = limits.power_bound(0.05, gaussian, distance=3, connected=True)
check(one, 0.768035, 1e-6)
check(other, 0.44241, 1e-5)
check(other, stats.norm.cdf(stats.norm.ppf(0.05) + 1.5), 1e-9)

# %% [markdown]
# These limits are attained. A count with canonical noise, which is Tulap noise for pure
# privacy, moves by three when three records change; rejecting where it is large is the
# best test, and its power is the bound at every level. The bound of (3, 0)-privacy, which
# such data sets have too, is larger: 0.9527 at 5 %.

# %%
alpha = np.linspace(0.01, 0.99, 99)
figure, ax = plt.subplots(figsize=(5, 3.6), layout="constrained")
for name, f in {"(1, 0)": pure, "0.5-GDP": gaussian}.items():
    noise = fdp.canonical_noise(f)
    attained = 1 - np.asarray(noise.cdf(noise.isf(alpha) - 3))
    at_most = np.asarray(limits.power_bound(alpha, f, distance=3, connected=True))
    assert np.max(np.abs(attained - at_most)) < 1e-9
    ax.plot(alpha, at_most, label=f"bound, {name}")
    ax.plot(alpha[::6], attained[::6], "o", label="canonical noise")
check(1 - fdp.PureDP(3.0).beta(alpha=0.05), 0.952702, 1e-6)
ax.plot(alpha, alpha, ":", color="black")
ax.set(xlabel="level", ylabel="power")
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# The bound holds for real tests: a sum of n bits with Laplace noise, and a model that
# changes one of them. The best test of its output is worse than the bound at every level.

# %%
alpha = np.linspace(0.01, 0.99, 99)
laplace = fdp.Laplace(1.0)  # one bit moves the sum by one
real = np.asarray(laplace.tpr(fpr=alpha, bound=fdp.Bound.OPTIMISTIC))
allowed = np.asarray(limits.power_bound(alpha, pure, distance=1, connected=True))
assert np.all(real <= allowed + 1e-12)
figure, ax = plt.subplots(figsize=(5, 3.6), layout="constrained")
ax.plot(alpha, allowed, label="bound, (1, 0)")
ax.plot(alpha, real, "--", label="Laplace noise")
ax.plot(alpha, alpha, ":", color="black")
ax.set(xlabel="level", ylabel="power")
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# ## Likelihoods lie in an interval of measures
#
# If p(t) is the density of the output at one data set, the marginal likelihood of any
# model within d steps of it lies between exp(-ε d) p(t) and exp(ε d) p(t). If only a part w
# of the model can produce t, the lower bound needs the factor w, which the printed theorem
# lacks: with p(t) = 0.3, ε = 1, d = 2 and w = 1/4 it is 0.010150.

# %%
low, high = limits.marginal_bounds(
    np.log(0.3), epsilon=1.0, distance=2, connected=True, mass=0.25
)
check(np.exp(low), 0.010150, 1e-6)
check(np.exp(low), 0.25 * 0.3 * np.exp(-2), 1e-12)
print(float(np.exp(low)), float(np.exp(high)))

# %% [markdown]
# A check by brute force: n = 5 bits with any prior on their sum, Laplace noise of scale 1
# on it. Every marginal likelihood is inside the bounds.

# %%
statistic = np.linspace(-3.0, 8.0, 45)
floor, ceiling = limits.laplace_sum_bounds(statistic, epsilon=1.0, num_records=5)
draw = np.random.default_rng(0)
for _ in range(200):
    weights = draw.dirichlet(np.full(6, 0.3))
    marginal = stats.laplace.pdf(statistic[:, None] - np.arange(6)) @ weights
    assert np.all(np.log(marginal) >= np.asarray(floor) - 1e-12)
    assert np.all(np.log(marginal) <= np.asarray(ceiling) + 1e-12)

# %% [markdown]
# ## Examples that attain the limits
#
# None of these limits can be improved: n = 4 bits and Laplace noise of scale 1 / ε on their
# number, with ε = 0.5, attain them. Two data sets, all zeros and all ones, are four steps
# apart, and beyond the ends of 0 to 4 their densities have the constant ratio exp(± ε n).
#
# *Likelihood.* Seen from x\* = all zeros, a model that is sure of ones has the upper limit
# at every t ≥ 4 and the lower one at every t ≤ 0. It need not be a point mass: incomes that
# all exceed the value at which they are clipped are ones, whatever else the model says of
# them, so that any prior over such models has a prior predictive law on the limit. Its
# limits over all x\* at t = 5, log(ε / 2) - ε and log(ε / 2) - 5 ε, are attained by two
# models. With randomized response for each bit, ε = 1 and n = 10, the largest and the least
# likelihood of 2^10 outputs are 0.0436035 and 1.9796e-6, the limits.

# %%
records, step = 4, 0.5
t = np.linspace(-4.0, 8.0, 241)
zeros, ones = (stats.laplace.logpdf(t, m, 1 / step) for m in (0, records))
floor, ceiling = (
    np.asarray(end)
    for end in limits.marginal_bounds(
        zeros, epsilon=step, distance=records, connected=True
    )
)
# A prior over models, all of which exceed the value of clipping: Exponential + 1.
rates = np.random.default_rng(1).gamma(2.0, size=(50, 1))
incomes = 1 + np.random.default_rng(2).exponential(size=(50, records)) / rates
counts = np.minimum(incomes, 1.0).sum(axis=1)
predictive = np.log(stats.laplace.pdf(t[:, None], counts, 1 / step).mean(axis=1))
np.testing.assert_allclose(predictive, ones, atol=1e-12)
above, below = t >= records, t <= 0
np.testing.assert_allclose(predictive[above], ceiling[above], atol=1e-11)
np.testing.assert_allclose(predictive[below], floor[below], atol=1e-11)
assert np.all((floor - 1e-11 <= predictive) & (predictive <= ceiling + 1e-11))

low, high = limits.laplace_sum_bounds(5.0, epsilon=step, num_records=records)
check(high, stats.laplace.logpdf(5.0, records, 1 / step), 1e-11)
check(high, np.log(step / 2) - step, 1e-11)
low, _ = limits.laplace_sum_bounds(0.0, epsilon=step, num_records=records)
check(low, stats.laplace.logpdf(0.0, records, 1 / step), 1e-11)

flips = np.asarray([bin(i).count("1") for i in range(2**10)])
likelihood = stats.bernoulli.pmf(1, 1 / (np.e + 1)) ** flips
likelihood = likelihood * stats.bernoulli.pmf(0, 1 / (np.e + 1)) ** (10 - flips)
check(likelihood.sum(), 1.0, 1e-12)
low, high = map(np.exp, limits.local_bounds(epsilon=1.0, num_records=10))
check(high, 0.04360354279412868, 1e-12)
check(likelihood.max() / high, 1.0, 1e-11)
check(likelihood.min() / low, 1.0, 1e-11)
check(low, 1.9795977802489445e-6, 1e-16)

# %% [markdown]
# *Posterior.* The hypothesis "all ones" against "all zeros", of prior probability 0.1, has
# the largest posterior that any (0.5, 0)-private output about four records allows at every
# t ≥ 4, 0.4509, and the least one, 0.0148, at every t ≤ 0. The printed form, the prior times
# exp(± ε n), is approached: a hypothesis of prior probability 1e-6 is multiplied by 7.38901
# of exp(2) = 7.38906.
#
# *Power, k = 4.* The test that rejects for large t has the printed power α exp(ε n) for all
# levels up to exp(-ε n) / 2 = 0.0677: at 5 %, 0.3695. (Above that level canonical noise, as
# above, attains the limit.)

# %%
figure, axes = plt.subplots(1, 3, figsize=(13, 3.6), layout="constrained")
axes[0].plot(t, predictive - zeros, label="prior predictive")
axes[0].plot(t, ceiling - zeros, "k:", t, floor - zeros, "k:")
axes[0].set(xlabel="output t", ylabel="log of the likelihood over that of x*")

for prior in (0.01, 0.1, 0.5, 0.9):
    odds = prior / (1 - prior) * np.exp(ones - zeros)
    posterior = odds / (1 + odds)
    least, most = limits.posterior_bounds(
        prior, epsilon=step, distance=records, connected=True
    )
    assert np.all(posterior >= least - 1e-12)
    assert np.all(posterior <= most + 1e-12)
    np.testing.assert_allclose(posterior[above], most, atol=1e-11)
    np.testing.assert_allclose(posterior[below], least, atol=1e-11)
    axes[1].plot(t, posterior)
    axes[1].hlines([least, most], -4, 8, color="black", linestyle=":", linewidth=0.8)
    if prior == 0.1:
        check(most, 0.4509, 5e-5)
        check(least, 0.0148, 5e-5)
axes[1].set(xlabel="output t", ylabel="posterior of all ones")

rare = 1e-6
odds = rare / (1 - rare) * np.exp(ones[-1] - zeros[-1])
_, printed = limits.posterior_density_bounds(
    np.log(rare), epsilon=step, distance=records, connected=True
)
check(np.exp(printed) / rare, 7.38906, 5e-6)
check(odds / (1 + odds) / rare, 7.38901, 5e-6)

small = np.geomspace(1e-6, np.exp(-step * records) / 2, 50)
cut = stats.laplace.isf(small, 0, 1 / step)
power = stats.laplace.sf(cut, records, 1 / step)
printed = np.asarray(limits.pure_power_bound(small, epsilon=step, distance=records))
np.testing.assert_allclose(power, printed, rtol=1e-11)
half = fdp.tradeoff.ApproxDP(epsilon=step, delta=0.0)
sharp = limits.power_bound(small, half, distance=records, connected=True)
np.testing.assert_allclose(power, sharp, rtol=1e-10)
check(limits.power_bound(0.05, half, distance=records, connected=True), 0.36945, 5e-6)
axes[2].loglog(small, printed, label="limit, k = 4")
axes[2].loglog(small[::5], power[::5], "o", label="Laplace noise")
axes[2].loglog(small, small, ":", color="black")
axes[2].set(xlabel="level", ylabel="power")
for ax in axes[::2]:
    ax.legend(frameon=False)
plt.show()

print(CHECKED, "numbers checked")
