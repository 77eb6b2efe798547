"""Closed forms of two compositions, in mpmath and without the package.

They are as precise as mpmath is asked to be where they are used.

Gaussian: the loss Y is normal under Q with variance v and mean v / 2, and under P with
mean -v / 2.  Atoms: Y takes finitely many values.
"""

import mpmath as mp
from reference import exact


class Gaussian:
    """`count` releases with noise `s`, all numbers taken as they stand."""

    def __init__(self, noise, count=1.0):
        self.variance = exact(count) / exact(noise) ** 2
        self.mean = self.variance / 2
        self.deviation = self.variance ** mp.mpf("0.5")

    def power(self, epsilon):
        """Q(Y > eps)."""
        return _tail((epsilon - self.mean) / self.deviation)

    def alpha(self, epsilon):
        """P(Y > eps)."""
        return _tail((epsilon + self.mean) / self.deviation)

    def density(self, epsilon):
        """Of Y under Q."""
        return mp.npdf(epsilon, self.mean, self.deviation)

    def delta(self, epsilon):
        return self.power(epsilon) - mp.exp(epsilon) * self.alpha(epsilon)

    def rest(self, epsilon):
        """1 - delta(eps), accurate where that is tiny."""
        below = _tail((self.mean - epsilon) / self.deviation)
        return below + mp.exp(epsilon) * self.alpha(epsilon)

    def cumulant(self, z):
        """K(z) = log E_Q e^{z Y}."""
        return z * (1 + z) * self.variance / 2


class Atoms:
    """Outputs with probabilities `p` and `q`, `count` independent times."""

    def __init__(self, p, q, count=1.0):
        self.p, self.q = [exact(x) for x in p], [exact(x) for x in q]
        self.count = exact(count)

    def cumulant(self, z, sign=1):
        """K(z) of the pair as given, or exchanged."""
        pairs = zip(self.p, self.q, strict=True)
        sides = [(p, q) if sign > 0 else (q, p) for p, q in pairs]
        return self.count * mp.log(mp.fsum(q * (q / p) ** z for p, q in sides))


def response_delta(epsilon, count, threshold):
    """delta of `count` randomized responses: a sum over how many told the truth."""
    one, total = exact(epsilon), mp.mpf(0)
    q = 1 / (1 + mp.exp(-one))
    for k in range(count + 1):
        gain = 1 - mp.exp(threshold - (2 * k - count) * one)
        mass = mp.binomial(count, k) * q**k * (1 - q) ** (count - k)
        total += mass * max(gain, 0)
    return total


def _tail(x):
    return mp.erfc(x / mp.sqrt(2)) / 2
