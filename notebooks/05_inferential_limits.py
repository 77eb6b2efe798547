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

print(CHECKED, "numbers checked")
