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
# # Infinitely divisible privacy losses
#
# Many weak releases add up to an infinitely divisible privacy loss: a Gaussian part and
# jumps. If all jumps vanish the limit is Gaussian DP with one number mu. If rare releases
# leak much, a Poisson part stays, and mu says next to nothing.
#
# Every number in the text is checked by an assertion in the code below it.

# %%
import jax
import matplotlib.pyplot as plt
import numpy as np
from scipy import stats

import fdp_jax as fdp
from fdp_jax import levy

# Accounting is not training: double precision costs nothing here.
jax.config.update("jax_enable_x64", True)

CHECKED = 0


def check(value, stated, tolerance):
    """Fail unless the value is the one stated in the text."""
    global CHECKED
    assert abs(float(value) - stated) <= tolerance, (float(value), stated)
    CHECKED += 1


# %% [markdown]
# ## Gaussian against Poisson
#
# Two triplets of the same variance 1: no jumps (1-GDP), and jumps of size ±1 at the rates
# that make the loss symmetric, ν(-1) = e ν(1) under P. At one threshold they look alike;
# in the tail they do not.

# %%
gaussian = fdp.LevyTriplet(1.0)
rate = 1 / (1 + np.e)
jumps = fdp.LevyTriplet(0.0, jumps=[1.0, -1.0], rates=[rate, rate * np.e])
check(gaussian.variance(), 1.0, 1e-12)
check(jumps.variance(), 1.0, 1e-12)
assert jumps.is_symmetric()
check(gaussian.epsilon(delta=1e-5), fdp.Gaussian(1.0).epsilon(delta=1e-5), 1e-8)

epsilon = np.linspace(0.0, 8.0, 81)
figure, ax = plt.subplots(figsize=(6, 3.8), layout="constrained")
ax.semilogy(epsilon, gaussian.delta(epsilon=epsilon), label="Gaussian, mu = 1")
ax.semilogy(epsilon, jumps.delta(epsilon=epsilon), label="jumps of size 1")
ax.set(xlabel="epsilon", ylabel="delta", ylim=(1e-10, 1))
ax.legend(frameon=False)
plt.show()
assert jumps.delta(epsilon=6.0) > 3 * gaussian.delta(epsilon=6.0)

# %% [markdown]
# ## A count as a Poisson variable
#
# `PoissonMechanism` releases a count by drawing a Poisson variable with mean
# offset + gain · count. With offset 20 and gain 1 it is (0.5600, 0.001)-private.

# %%
count = fdp.PoissonMechanism(offset=20.0, gain=1.0)
print(float(count.epsilon(delta=1e-3)))
check(count.epsilon(delta=1e-3), 0.56003, 1e-5)
k = np.arange(0, 200)
p, q = stats.poisson.pmf(k, 20.0), stats.poisson.pmf(k, 21.0)
exact = max(
    np.maximum(q - np.e**0.5 * p, 0).sum(), np.maximum(p - np.e**0.5 * q, 0).sum()
)
check(count.delta(epsilon=0.5), exact, 1e-12)

# %% [markdown]
# ## Where mu-GDP misleads
#
# DP-SGD with a noise multiplier of 0.35 and a sampling probability of 1e-4, 1000 steps: a
# given record takes part in a tenth of a step on average, and if it does, it is seen. The
# central limit theorem gives a Gaussian with δ(0.5) = 4e-13. The truth is 0.0028. The
# diagnostic s² / (2 k) - 1, zero for a Gaussian, is -0.27 and says so before any profile is
# computed; the limit with jumps is right to two parts in a thousand.

# %%
run = fdp.DPSGD(noise_multiplier=0.35, sampling_prob=1e-4, num_steps=1000)
central = levy.central_limit(run)
limit = levy.jump_limit(run)
truth = run.remove.delta(epsilon=0.5)
print("truth", float(truth))
print("Gaussian limit", float(central.triplet().delta(epsilon=0.5)))
print("limit with jumps", float(limit.remove.delta(epsilon=0.5)))
print("diagnostic", float(central.excess))
check(truth, 2.836e-3, 1e-6)
check(limit.remove.delta(epsilon=0.5) / truth, 1.0, 3e-3)
check(central.triplet().delta(epsilon=0.5), 4e-13, 5e-14)
check(central.excess, -0.267, 5e-4)

# %% [markdown]
# A run of ordinary density is another matter: with noise multiplier 1, q = 0.01 and 1000
# steps the diagnostic is -0.0225, and mu = 0.4001 a fair summary.

# %%
dense = levy.central_limit(
    fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.01, num_steps=1000)
)
print("mu", float(dense.mu), "diagnostic", float(dense.excess))
check(dense.mu, 0.4001, 5e-5)
check(dense.excess, -0.0225, 5e-5)

# %% [markdown]
# ## Rare events: from the binomial to Poisson
#
# n releases of a bit, which is 1 with probability 0.8 / n, or 1.9 / n with the record in
# the data: the number of ones is binomial, and its trade-off function tends to that of
# two Poisson variables with means 0.8 and 1.9, at the rate 1 / n. The Gaussian limit
# stays away: there is no central limit theorem for rare events.

# %%
poisson = fdp.tradeoff.Poisson(0.8, 1.9)
alpha = np.linspace(0.0, 1.0, 401)


def most_powerful(p, q, alpha):
    """Type II errors of Neyman and Pearson's tests between two laws, by hand."""
    order = np.argsort(-q / np.maximum(p, 1e-300))
    false_alarms = np.append(0.0, np.cumsum(p[order]))
    return np.interp(alpha, false_alarms, 1 - np.append(0.0, np.cumsum(q[order])))


figure, ax = plt.subplots(figsize=(5.4, 4.4), layout="constrained")
limit_beta = np.asarray(poisson.beta(alpha=alpha))
errors = {}
for n in (2, 5, 20, 200):
    ones = np.arange(n + 1)
    laws = (stats.binom.pmf(ones, n, mean / n) for mean in (0.8, 1.9))
    beta = most_powerful(*laws, alpha)
    errors[n] = np.max(np.abs(beta - limit_beta))
    if n < 200:
        ax.plot(alpha, beta, label=f"binomial, n = {n}")
ax.plot(alpha, limit_beta, "k--", label="Poisson limit")
ax.set(xlabel="type I error", ylabel="type II error", title="rare events")
ax.legend(frameon=False)
plt.show()
print({n: float(x) for n, x in errors.items()})
by_hand = most_powerful(
    *(stats.poisson.pmf(np.arange(60), mean) for mean in (0.8, 1.9)), alpha
)
assert np.max(np.abs(by_hand - limit_beta)) < 1e-11
assert 8 < errors[20] / errors[200] < 12

# %% [markdown]
# ## A measurement that is read to whole numbers
#
# Gaussian noise, but only the whole part of the value is released: the trade-off function
# is piecewise linear, and touches the Gaussian one where a cut lies. (Whoever does not know
# where the cuts are has to reckon with the Gaussian one: rounding is no gain then.) At
# mu = 0.5, 1 and 2, with a scale as fine as the noise:

# %%
figure, axes = plt.subplots(1, 3, figsize=(12, 4), layout="constrained")
for ax, mu in zip(axes, (0.5, 1.0, 2.0), strict=True):
    coarse, fine = fdp.tradeoff.QuantizedGaussian(mu), fdp.tradeoff.Gaussian(mu)
    beta, least = (np.asarray(f.beta(alpha=alpha)) for f in (coarse, fine))
    assert np.all(beta >= least - 1e-11)
    edges = np.arange(-40, 41) + float(coarse.offset)
    laws = [np.diff(stats.norm.cdf(edges, loc=shift)) for shift in (0.0, mu)]
    by_hand = most_powerful(*laws, alpha)
    assert np.max(np.abs(beta - by_hand)) < 1e-9
    ax.plot(alpha, beta, label="rounded")
    ax.plot(alpha, least, ":", label="Gaussian")
    ax.set(xlabel="type I error", ylabel="type II error", title=f"mu = {mu:g}")
    ax.legend(frameon=False)
plt.show()

# %%
print(CHECKED, "numbers checked")
