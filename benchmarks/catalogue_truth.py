"""Reference values for the catalogue of mechanisms, to 25 digits, by mpmath.

Independent of the package. P is the law of the output without the record, Q with it;
"remove" is delta(eps) = sup_S [Q(S) - e^eps P(S)] and "add" exchanges the two. The
parameters are the decimals as written, not the doubles nearest to them.

Four kinds of pairs cover the catalogue:

- `Atoms`: finitely many outputs (or integers, cut off where nothing is left). Sums
  over the types of n outputs; epsilon exactly, since delta is linear in e^eps between
  two losses. Second formula: a recursion over the releases on E_Q[(1 - e^(eps-Y))_+],
  for discrete Gaussians the law of the sum from its characteristic function.
- `Segment`: losses with atoms at the ends of their range and a density on an interval.
  Two releases by delta(eps) = E[delta_1(eps - Y)]. Second formula: a closed form, or
  the complement delta(eps) = 1 - e^eps + e^eps delta'(-eps) in the other direction.
- `Line`: densities on the line with an increasing loss. The best region of two releases
  is symmetric, so only its half x_1 < x_2 is integrated. Second formula: as Segment.
- Closed forms. Second formula: an integral over the output.

Every value is computed by both formulas, and they must agree to 27 digits. The result
is `tests/data/catalogue_truth.json`.

Run: python benchmarks/catalogue_truth.py (needs mpmath; minutes, with gmpy2).
"""

import functools
import itertools
import json
import math
import pathlib
from decimal import Decimal

import mpmath as mp

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests/data/catalogue_truth.json"
DELTAS = ("1e-5", "1e-8", "1e-12", "1e-20", "1e-30")
DIGITS = 25
BOTH, SYMMETRIC = ("remove", "add"), ("remove",)
# Closed forms can afford to lose digits; nested quadrature cannot afford many.
EXACT, QUADRATURE, COARSE = 80, 46, 20


def num(value):
    """The decimal as written."""
    return mp.mpf(str(value))


def turned(direction):
    """The other direction."""
    return "add" if direction == "remove" else "remove"


def complement(eps, delta_turned):
    """Delta from the other direction's delta at -eps: the best region's complement."""
    return 1 - mp.exp(eps) + mp.exp(eps) * delta_turned


# Quadrature.


@functools.cache
def _legendre(count, precision):
    """Gauss-Legendre nodes and weights on (0, 1)."""

    def value_and_slope(x):
        below, value = mp.mpf(1), x
        for j in range(2, count + 1):
            above = ((2 * j - 1) * x * value - (j - 1) * below) / j
            below, value = value, above
        return value, count * (x * value - below) / (x * x - 1)

    nodes = []
    with mp.workprec(precision + 20):
        for k in range(count):
            x = mp.cos(mp.pi * (k + mp.mpf("0.75")) / (count + mp.mpf("0.5")))
            step = mp.mpf(1)
            while abs(step) > mp.mpf(2) ** (-precision * 2 // 3):
                value, slope = value_and_slope(x)
                step = value / slope
                x -= step
            _, slope = value_and_slope(x)
            nodes.append(((1 + x) / 2, 1 / ((1 - x * x) * slope * slope)))
    return nodes


def gauss(cuts, widest=None):
    """Nodes and weights on the pieces between the cuts.

    x = a + (b - a) u^2 (3 - 2u) makes a square root at either end analytic.
    """
    base = _legendre(int(mp.mp.dps * 0.9) + 8, mp.mp.prec)
    for a, b in itertools.pairwise(cuts):
        parts = 1 if widest is None else max(1, int(mp.ceil((b - a) / widest)))
        width = (b - a) / parts
        for k in range(parts):
            for u, w in base:
                yield (
                    a + width * (k + u * u * (3 - 2 * u)),
                    w * width * 6 * u * (1 - u),
                )


def gauss_rule(f, cuts):
    """The integral of f over the pieces by Gauss-Legendre."""
    return mp.fsum(w * f(x) for x, w in gauss(cuts))


def tanh_sinh(f, cuts):
    """The integral of f over the pieces by tanh-sinh.

    Its stopping rule is absolute, hence the scale from a first rough integral.
    """
    scale = mp.mpf(mp.quad(f, cuts, maxdegree=3))
    return scale * mp.mpf(mp.quad(lambda x: f(x) / scale, cuts)) if scale else scale


def between(low, points, high):
    """The sorted cuts of (low, high) at those of the points that lie inside."""
    return [low, *sorted({x for x in points if low < x < high}), high]


def nothing(eps):
    """Delta of a release that says nothing: the base of every composition."""
    return max(mp.mpf(0), -mp.expm1(eps))


def composed(first, second, kinks, eps, rule):
    """Delta of two releases as E[second(eps - Y)], Y the loss of the first.

    The kinks are the points where `second` is not analytic.
    """
    total = mp.fsum(mass * second(eps - loss) for mass, loss in first.atoms)
    bends = [first.inverse(eps - k) for k in kinks if first.low < eps - k < first.high]
    cuts = between(first.start, [*first.joints, *bends], first.end)
    return total + rule(lambda x: first.density(x) * second(eps - first.loss(x)), cuts)


# Kinds of pairs. Each has delta(eps, direction), second(eps, direction) and
# top(direction), the largest finite loss; `coarse` is the precision of a first root.


class Atoms:
    """Finitely many outputs, released n times: exact sums over types."""

    dps, coarse = EXACT, None

    def __init__(self, p, q, count=1, unbounded=False, second=None):
        letters = [(a, b) for a, b in zip(p, q, strict=True) if a or b]
        self.letters, self.count, self.unbounded = letters, count, unbounded
        self.types = letters if count == 1 else [
            (ways * mp.fprod(a**k for (a, _), k in zip(letters, ks, strict=True)),
             ways * mp.fprod(b**k for (_, b), k in zip(letters, ks, strict=True)))
            for ks, ways in _types(len(letters), count)
        ]  # fmt: skip
        self.given = second

    def sides(self, pairs, direction):
        """(upper, lower) masses of each outcome."""
        return pairs if direction == "add" else [(b, a) for a, b in pairs]

    def top(self, direction):
        """The largest finite loss."""
        if self.unbounded:
            return mp.inf
        ratios = [u / v for u, v in self.sides(self.letters, direction) if v]
        return self.count * mp.log(max(ratios))

    def delta(self, eps, direction):
        """Sum over outcomes of (upper - e^eps lower)_+."""
        e = mp.exp(eps)
        return mp.fsum(max(u - e * v, 0) for u, v in self.sides(self.types, direction))

    def epsilon(self, delta, direction):
        """Exact: the losses above epsilon are found first, then e^eps."""
        sides = self.sides(self.types, direction)
        upper = mp.fsum(u for u, v in sides if not v)
        lower = mp.mpf(0)
        finite = sorted(((u / v, u, v) for u, v in sides if v), reverse=True)
        for ratio, u, v in finite:
            if upper - ratio * lower >= delta:
                break
            upper, lower = upper + u, lower + v
        return mp.log((upper - delta) / lower)

    def second(self, eps, direction):
        """E_Q[(1 - e^(eps-Y))_+], one release after another."""
        if self.given is not None:
            return self.given(eps, direction)
        sides = self.sides(self.letters, direction)
        steps = [(u, mp.log(u / v)) for u, v in sides if u and v]
        certain = mp.fsum(u for u, v in sides if not v)

        @functools.cache
        def rest(counts):
            if sum(counts) == self.count:
                losses = (k * s[1] for k, s in zip(counts, steps, strict=True))
                return nothing(eps - mp.fsum(losses))
            total = certain
            for j, (mass, _) in enumerate(steps):
                total += mass * rest((*counts[:j], counts[j] + 1, *counts[j + 1 :]))
            return total

        return rest((0,) * len(steps))


def _types(letters, count):
    """Count vectors of `count` draws of `letters` letters, with their multiplicity."""
    if letters == 1:
        yield (count,), 1
        return
    for k in range(count + 1):
        for rest, ways in _types(letters - 1, count - k):
            yield (k, *rest), ways * math.comb(count, k)


class Segment:
    """Oriented halves (upper law, its loss) of a pair with losses in a bounded range.

    A half has atoms, start, end, density(x), loss(x), inverse(loss), low, high and
    delta(eps) for one release.
    """

    dps, coarse = EXACT, None

    def __init__(self, halves, count, second=None):
        self.halves, self.count, self.given = halves, count, second

    def top(self, direction):
        """The largest loss."""
        return self.count * self.halves[direction].high

    def delta(self, eps, direction, rule=gauss_rule):
        """One release in closed form, two by quadrature."""
        half = self.halves[direction]
        if self.count == 1:
            return half.delta(eps)
        return composed(half, half.delta, (half.low, half.high), eps, rule)

    def second(self, eps, direction):
        """A given formula, the integral over the output, or the complement's."""
        if self.given is not None:
            return self.given(eps, direction)
        if self.count == 1:
            half = self.halves[direction]
            return composed(half, nothing, (mp.mpf(0),), eps, tanh_sinh)
        # A symmetric pair has one half, and both directions are that half.
        other = turned(direction) if len(self.halves) == 2 else direction
        return complement(eps, self.delta(-eps, other, tanh_sinh))


class Half:
    """Attributes of one orientation of a pair."""

    def __init__(self, **attributes):
        self.atoms, self.joints = (), ()
        self.__dict__.update(attributes)


class Line:
    """Densities on the line, loss increasing; one release or two."""

    dps, coarse = QUADRATURE, COARSE

    def __init__(
        self, p, q, loss, inverse, low=-mp.inf, joints=(), count=1, widest=1.5
    ):
        self.p, self.q, self.loss, self.inverse = p, q, loss, inverse
        self.low, self.joints, self.count, self.widest = low, joints, count, widest

    def top(self, direction):
        """The largest loss; its end is open on the left of the line only."""
        return mp.inf if direction == "remove" else -self.count * self.low

    def single(self, eps, direction):
        """Delta of one release: one tail of each law."""
        if direction == "remove":
            if eps <= self.low:
                return -mp.expm1(eps)
            x = self.inverse(eps)
            return self.q.above(x) - mp.exp(eps) * self.p.above(x)
        if -eps <= self.low:
            return mp.mpf(0)
        x = self.inverse(-eps)
        return self.p.below(x) - mp.exp(eps) * self.q.below(x)

    def delta(self, eps, direction):
        """Delta of one release or of two."""
        if self.count == 1:
            return self.single(eps, direction)
        remove = direction == "remove"
        level = eps if remove else -eps
        if level <= 2 * self.low:
            return -mp.expm1(eps) if remove else mp.mpf(0)
        # The region is loss(x) + loss(y) > level, or < for "add": its border meets the
        # diagonal at `middle`, and beyond y < middle it is the graph of an inverse.
        middle = self.inverse(level / 2)
        start = -self.p.reach(min(middle, 0))
        bends = [*self.joints]
        for x in self.joints:
            gap = level - self.loss(x)
            if gap > self.low:
                bends.append(self.inverse(gap))
        sums = [[], []]
        for y, w in gauss(between(start, bends, middle), self.widest):
            x = self.inverse(level - self.loss(y))
            for s, law in zip(sums, (self.p, self.q), strict=True):
                s.append(w * law.density(y) * (law.above if remove else law.below)(x))
        p, q = (2 * mp.fsum(s) for s in sums)
        if remove:
            p, q = p + self.p.above(middle) ** 2, q + self.q.above(middle) ** 2
            return q - mp.exp(eps) * p
        p, q = p - self.p.below(middle) ** 2, q - self.q.below(middle) ** 2
        return p - mp.exp(eps) * q

    def half(self, eps, direction):
        """The pair as `composed` wants it, the line cut off in the far tails."""
        sign = 1 if direction == "remove" else -1
        level = sign * eps / self.count
        end = self.p.reach(self.inverse(level) if level > self.low else 0)
        return Half(
            start=-end,
            end=end,
            joints=[*self.joints, *(mp.mpf(k) for k in range(-12, 24, 3))],
            density=(self.q if sign == 1 else self.p).density,
            loss=lambda x: sign * self.loss(x),
            inverse=lambda y: self.inverse(sign * y),
            low=self.low if sign == 1 else -mp.inf,
            high=mp.inf if sign == 1 else -self.low,
        )

    def second(self, eps, direction):
        """E[delta_1(eps - Y)] by tanh-sinh over all outputs."""
        half = self.half(eps, direction)
        if self.count == 1:
            return composed(half, nothing, (mp.mpf(0),), eps, tanh_sinh)
        sign = 1 if direction == "remove" else -1
        kinks = [sign * self.loss(x) for x in self.joints]
        kinks += [sign * self.low] if mp.isfinite(self.low) else []
        inner = functools.partial(self.single, direction=direction)
        return composed(half, inner, kinks, eps, tanh_sinh)


class Formula:
    """A symmetric pair by a closed form, and a second formula."""

    coarse = None

    def __init__(self, delta, second, top, dps=EXACT):
        self._delta, self._second, self._top, self.dps = delta, second, top, dps

    def top(self, direction):
        """The largest loss."""
        return self._top

    def delta(self, eps, direction):
        """The closed form."""
        return self._delta(eps)

    def second(self, eps, direction):
        """The second formula."""
        return self._second(eps)


# Laws on the line.


class NormalMixture:
    """Mixture of unit Gaussians."""

    def __init__(self, weights, shifts):
        self.parts = list(zip(weights, shifts, strict=True))

    def density(self, x):
        """Density at x."""
        return mp.fsum(w * mp.npdf(x - s) for w, s in self.parts)

    def above(self, x):
        """Mass above x."""
        return mp.fsum(w * mp.erfc((x - s) / mp.sqrt(2)) / 2 for w, s in self.parts)

    def below(self, x):
        """Mass below x."""
        return mp.fsum(w * mp.erfc((s - x) / mp.sqrt(2)) / 2 for w, s in self.parts)

    def ratio(self, x):
        """Density over that of N(0, 1)."""
        return mp.fsum(w * mp.exp(s * x - s * s / 2) for w, s in self.parts)

    def reach(self, x):
        """Where the tail is nothing beside that at x, with room for the shifts."""
        return mp.sqrt(x * x + 4.7 * mp.mp.dps + 30) + 3


class GeneralizedNormal:
    """Density proportional to exp(-|x - shift|^shape)."""

    def __init__(self, shape, shift):
        self.shape, self.shift = shape, shift
        self.whole = mp.gamma(1 / shape)

    def density(self, x):
        """Density at x."""
        power = mp.power(abs(x - self.shift), self.shape)
        return self.shape * mp.exp(-power) / (2 * self.whole)

    def _tail(self, x):
        power = mp.power(abs(x), self.shape)
        tail = mp.gammainc(1 / self.shape, power) / (2 * self.whole)
        return tail if x > 0 else 1 - tail

    def above(self, x):
        """Mass above x."""
        return self._tail(x - self.shift)

    def below(self, x):
        """Mass below x."""
        return self._tail(self.shift - x)

    def reach(self, x):
        """Where the tail is nothing beside that at x, with room for the shift."""
        power = abs(x) ** self.shape + 2.4 * mp.mp.dps + 15
        return mp.power(power, 1 / self.shape) + 1


def positive_root(a, b, c):
    """The positive root of a z^2 + b z = c, a and c positive, without cancellation."""
    root = mp.sqrt(b * b + 4 * a * c)
    return 2 * c / (b + root) if b > 0 else (root - b) / (2 * a)


# Mechanisms: functions of the count and the parameters.


def normal_profile(mu, eps):
    """Delta of N(mu, 1) against N(0, 1)."""
    a, b = mu / 2 - eps / mu, -mu / 2 - eps / mu
    above = lambda x: mp.erfc(-x / mp.sqrt(2)) / 2
    return above(a) - mp.exp(eps) * above(b)


def normal_integral(mu, eps):
    """The same as an integral over the output."""
    x = eps / mu + mu / 2
    f = lambda t: mp.npdf(t - mu) * -mp.expm1(eps - mu * t + mu * mu / 2)
    return mp.quad(f, [x + k for k in range(0, 40, 2)])


def gaussian(count, sigma):
    """N(1, sigma^2) against N(0, sigma^2)."""
    mu = mp.sqrt(count) / num(sigma)
    return Formula(
        functools.partial(normal_profile, mu),
        functools.partial(normal_integral, mu),
        mp.inf,
    )


def laplace_profile(b, eps):
    """Delta of Lap(1, b) against Lap(0, b)."""
    if abs(eps) >= 1 / b:
        return nothing(eps)
    return -mp.expm1((eps - 1 / b) / 2)


def laplace_halves(b, q):
    """Lap(0, b) against its mixture with Lap(1, b), both directions.

    Q - e^eps P = q (Lap(1, b) - e^u P) with e^u = 1 + (e^eps - 1) / q.
    """
    far = mp.exp(-1 / b) / 2
    amplify = lambda l: mp.log1p(q * mp.expm1(l))
    reduce = lambda l: mp.log1p(mp.expm1(l) / q)
    low, high = amplify(-1 / b), amplify(1 / b)
    base = lambda x: (2 * x - 1) / b
    p = lambda x: mp.exp(-x / b) / (2 * b)

    def remove(eps):
        if eps >= high or eps <= low:
            return nothing(eps)
        return q * laplace_profile(b, reduce(eps))

    def add(eps):
        if -eps >= high or -eps <= low:
            return nothing(eps)
        w = reduce(-eps)
        return mp.exp(eps + w) * q * laplace_profile(b, -w)

    return {
        "remove": Half(
            atoms=(((1 - q) * far + q / 2, high), ((1 - q) / 2 + q * far, low)),
            start=mp.mpf(0),
            end=mp.mpf(1),
            density=lambda x: (1 - q) * p(x) + q * p(1 - x),
            loss=lambda x: amplify(base(x)),
            inverse=lambda y: (b * reduce(y) + 1) / 2,
            low=low,
            high=high,
            delta=remove,
        ),
        "add": Half(
            atoms=((far, -high), (mp.mpf(1) / 2, -low)),
            start=mp.mpf(0),
            end=mp.mpf(1),
            density=p,
            loss=lambda x: -amplify(base(x)),
            inverse=lambda y: (b * reduce(-y) + 1) / 2,
            low=-high,
            high=-low,
            delta=add,
        ),
    }


def laplace(count, b):
    """Lap(1, b) against Lap(0, b)."""
    half = laplace_halves(num(b), mp.mpf(1))["remove"]
    b = num(b)

    def closed(eps, direction="remove"):
        """Two releases; below 0 by the complement."""
        if eps < 0:
            return complement(eps, closed(-eps))
        if eps >= 2 / b:
            return mp.mpf(0)
        end = mp.exp(eps / 2 - 1 / b)
        atoms = laplace_profile(b, eps - 1 / b) / 2
        atoms += mp.exp(-1 / b) * laplace_profile(b, eps + 1 / b) / 2
        return atoms + (1 - end) / 2 - end * (2 / b - eps) / 4

    return Segment({"remove": half}, count, closed if count == 2 else None)


def subsampled_laplace(count, b, q):
    """Lap(0, b) against its mixture with Lap(1, b)."""
    return Segment(laplace_halves(num(b), num(q)), count)


def randomized_response(count, epsilon0):
    """The true one of two answers with odds e^epsilon0."""
    p = 1 / (1 + mp.exp(-num(epsilon0)))
    return Atoms([1 - p, p], [p, 1 - p], count)


def kary_randomized_response(count, num_categories, epsilon0, relation):
    """The true category with odds e^epsilon0 to each other one."""
    e = mp.exp(num(epsilon0))
    rest = num_categories - 1
    other = 1 / (e + rest)
    if relation == "zero_out":
        uniform = mp.mpf(1) / num_categories
        return Atoms([uniform, rest * uniform], [e * other, rest * other], count)
    same = (rest - 1) * other
    return Atoms([e * other, other, same], [other, e * other, same], count)


def approx_dp(count, epsilon0, delta0):
    """The worst pair of (epsilon0, delta0)-DP."""
    p = 1 / (1 + mp.exp(-num(epsilon0)))
    d = num(delta0)
    return Atoms([0, (1 - d) * (1 - p), (1 - d) * p, d],
                 [d, (1 - d) * p, (1 - d) * (1 - p), 0], count)  # fmt: skip


def discrete_gaussian_sums(sigma, sensitivity, count):
    """Masses of the sum of n draws on -end..end, by convolution."""
    end = int(mp.ceil(sigma * mp.sqrt(4.7 * mp.mp.dps) + sensitivity * count)) + 2
    one = [mp.exp(-mp.mpf(x * x) / (2 * sigma**2)) for x in range(-end, end + 1)]
    whole = mp.fsum(one)
    one = [v / whole for v in one]
    total, reach = one, end
    for _ in range(count - 1):
        out = [mp.mpf(0)] * (len(total) + len(one) - 1)
        for i, a in enumerate(total):
            for j, b in enumerate(one):
                out[i + j] += a * b
        reach += end
        total = out
    return total, reach


def discrete_gaussian_from_waves(sigma, sensitivity, count):
    """Delta of n releases; the sum's law by the inversion of its characteristic.

    The inversion has an absolute error, hence the digits.
    """
    with mp.workdps(150):
        law, shift, end = sum_law_from_waves(sigma, sensitivity, count)

    def delta(eps, direction="remove"):
        """Q has the larger mass above a point; Q is P moved by the shift."""
        e = mp.exp(eps)
        cut = int(mp.floor(sigma**2 * eps / sensitivity + mp.mpf(shift) / 2))
        above = range(max(cut + 1, shift - end), end + 1)
        return mp.fsum(law[abs(t - shift)] - e * law[abs(t)] for t in above)

    return delta


def sum_law_from_waves(sigma, sensitivity, count):
    """Masses at 0..end of the sum of n draws, the shift of the sum, and the end."""
    dps = mp.mp.dps
    end = int(mp.ceil(sigma * mp.sqrt(4.7 * dps * count)) + 2 * sensitivity * count) + 5
    period = 2 * end + 1
    turns = [mp.cospi(mp.mpf(2 * k) / period) for k in range(period)]
    one = [mp.exp(-mp.mpf(x * x) / (2 * sigma**2)) for x in range(end + 1)]
    whole = mp.jtheta(3, 0, mp.exp(-1 / (2 * sigma**2)))
    waves = [
        ((1 + 2 * mp.fsum(one[x] * turns[x * k % period] for x in range(1, end + 1)))
         / whole) ** count
        for k in range(end + 1)
    ]  # fmt: skip
    law = [
        (1 + 2 * mp.fsum(waves[k] * turns[x * k % period] for k in range(1, end + 1)))
        / period
        for x in range(end + 1)
    ]
    return law, count * sensitivity, end


def discrete_gaussian(count, sigma, sensitivity):
    """Integers, masses proportional to exp(-x^2 / (2 sigma^2)), shifted."""
    sigma = num(sigma)
    law, reach = discrete_gaussian_sums(sigma, sensitivity, count)
    shift = count * sensitivity
    # Q from the loss, which is linear in the sum, and not from the moved law.
    tilt = lambda t: mp.exp(sensitivity * (t - mp.mpf(shift) / 2) / sigma**2)
    q = [v * tilt(k - reach) for k, v in enumerate(law)]
    waves = discrete_gaussian_from_waves(sigma, sensitivity, count)
    return Atoms(law, q, unbounded=True, second=waves)


def subsampled_discrete_gaussian(count, sigma, sensitivity, q):
    """The shifted law with probability q."""
    assert count == 1
    sigma, q = num(sigma), num(q)
    law, _ = discrete_gaussian_sums(sigma, sensitivity, 1)
    moved = [mp.mpf(0)] * sensitivity + law
    p = law + [mp.mpf(0)] * sensitivity
    # The two ends, where one law was cut off and the other not, hold nothing.
    inside = slice(sensitivity, len(law))
    mixed = [(1 - q) * a + q * b for a, b in zip(p, moved, strict=True)]
    waves = discrete_gaussian_from_waves(sigma, sensitivity, 1)

    def amplified(eps, direction):
        if direction == "remove":
            if mp.exp(eps) <= 1 - q:
                return nothing(eps)
            return q * waves(mp.log1p(mp.expm1(eps) / q))
        if mp.exp(-eps) <= 1 - q:
            return mp.mpf(0)
        w = mp.log1p(mp.expm1(-eps) / q)
        return mp.exp(eps + w) * q * waves(-w)

    pair = Atoms(p[inside], mixed[inside], unbounded=True, second=amplified)
    pair.top = lambda direction: mp.inf if direction == "remove" else -mp.log(1 - q)
    return pair


def discrete_laplace_masses(parameter, sensitivity):
    """Outputs of equal loss together: x <= 0, 1, ..., x >= sensitivity."""
    r = mp.exp(-num(parameter))
    front = (1 - r) / (1 + r)
    left = front / (1 - r)
    p = [left, *(front * r**x for x in range(1, sensitivity)), left * r**sensitivity]
    return p, p[::-1]


def discrete_laplace(count, parameter, sensitivity):
    """Integers, masses proportional to exp(-parameter |x|), shifted."""
    return Atoms(*discrete_laplace_masses(parameter, sensitivity), count)


def subsampled_discrete_laplace(count, parameter, sensitivity, q):
    """The shifted law with probability q."""
    p, moved = discrete_laplace_masses(parameter, sensitivity)
    q = num(q)
    return Atoms(p, [(1 - q) * a + q * b for a, b in zip(p, moved, strict=True)], count)


def staircase(count, epsilon0, gamma):
    """Three losses: the steps of P and of Q on each of the pieces of the line."""
    e, gamma = mp.exp(-num(epsilon0)), num(gamma)
    a = (1 - e) / (2 * (gamma + e * (1 - gamma)))

    def density(x):
        x = abs(x)
        return a * e ** (int(x) + (x - int(x) >= gamma))

    cuts = sorted({k + s for k in range(-200, 201) for s in (0, gamma, 1 - gamma)})
    masses = {-1: [0, 0], 0: [0, 0], 1: [0, 0]}
    for left, right in itertools.pairwise(cuts):
        x = (left + right) / 2
        p, q = density(x), density(x - 1)
        step = round(float(mp.log(q / p) / num(epsilon0)))
        masses[step][0] += (right - left) * p
        masses[step][1] += (right - left) * q
    flat = mp.mpf(max(0, 1 - 2 * min(gamma, 1 - gamma)))
    flat *= a * (e if 2 * gamma < 1 else 1)
    # Closed form of the same masses; e^-200 of the sums above is cut off.
    up = (1 - flat) / (1 + e)
    p, q = [e * up, flat, up], [up, flat, e * up]
    for k, step in enumerate((1, 0, -1)):
        assert abs(masses[step][0] - p[k]) < mp.mpf(10) ** -70
        assert abs(masses[step][1] - q[k]) < mp.mpf(10) ** -70
    return Atoms(p, q, count)


def bounded_range_profile(epsilon0, eps):
    """Worst two-point pair of losses t and t - epsilon0: t = (eps + epsilon0) / 2."""
    if abs(eps) >= epsilon0:
        return nothing(eps)
    return mp.expm1((eps - epsilon0) / 2) ** 2 / -mp.expm1(-epsilon0)


def bounded_range_closed(epsilon0, count, eps):
    """Delta of n releases: exponential times Irwin-Hall, term by term."""
    front = (-2 * mp.expm1(-epsilon0)) ** -count
    top = count * epsilon0

    def antiderivative(u, rate):
        m = count - 1
        terms = (
            (-1) ** j * mp.mpf(math.factorial(m)) / math.factorial(m - j)
            * u ** (m - j) / rate ** (j + 1)
            for j in range(m + 1)
        )  # fmt: skip
        return mp.exp(rate * u) * mp.fsum(terms)

    total = mp.mpf(0)
    for k in range(count + 1):
        knot = -top + 2 * epsilon0 * k
        a, b = max(eps, knot) - knot, top - knot
        for sign, rate in ((1, mp.mpf(1) / 2), (-1, mp.mpf(-1) / 2)):
            scale = mp.exp(rate * knot - top / 2 + (0 if sign == 1 else eps))
            part = antiderivative(b, rate) - antiderivative(a, rate)
            total += sign * (-1) ** k * math.comb(count, k) * scale * part
    return front * total / math.factorial(count - 1)


def check_bounded_range(epsilon0):
    """The profile is the largest of the two-point pairs' and has the density used."""
    for eps in (-mp.mpf("0.7"), mp.mpf(0), mp.mpf("0.4")):
        best = mp.mpf(0)
        for k in range(1001):
            t = epsilon0 * k / 1000
            upper = mp.expm1(t - epsilon0) / mp.expm1(-epsilon0)
            pair = upper * nothing(eps - t) + (1 - upper) * nothing(eps - t + epsilon0)
            best = max(best, pair)
        value = bounded_range_profile(epsilon0, eps)
        assert abs(value - best) < mp.mpf(10) ** -6
        slope = mp.diff(lambda e: bounded_range_profile(epsilon0, e), eps)
        tail = -mp.expm1((eps - epsilon0) / 2) / -mp.expm1(-epsilon0)
        assert abs(value - slope - tail) < mp.mpf(10) ** -20


def exponential_mechanism(count, epsilon0):
    """The worst profile of bounded range epsilon0."""
    epsilon0 = num(epsilon0)
    check_bounded_range(epsilon0)
    top = count * epsilon0
    front = (-2 * mp.expm1(-epsilon0)) ** -count / mp.mpf(math.factorial(count - 1))

    def delta(eps):
        """Quadrature; the sum's density from its upper end, where nothing cancels."""
        if count == 1:
            return bounded_range_profile(epsilon0, eps)

        def f(s):
            gaps = [top - s - 2 * epsilon0 * k for k in range(count + 1)]
            hall = mp.fsum(
                (-1) ** k * math.comb(count, k) * gap ** (count - 1)
                for k, gap in enumerate(gaps)
                if gap > 0
            )
            return hall * mp.exp((s - top) / 2) * -mp.expm1(eps - s)

        knots = [-top + 2 * epsilon0 * k for k in range(count)]
        return front * gauss_rule(f, between(eps, knots, top))

    return Formula(delta, functools.partial(bounded_range_closed, epsilon0, count), top)


def logistic(count, scale):
    """Logistic densities, shifted by 1; outputs by their rank v under Q."""
    end = 1 / num(scale)
    floor = mp.exp(-end)

    def delta(eps):
        if abs(eps) >= end:
            return nothing(eps)
        # w = e^(-x/scale) at the threshold: tails w / (1 + w) and the same at e^end w.
        r = mp.exp((eps - end) / 2)
        w = (1 - r) / (r / floor - 1)
        v = w / floor
        return v / (1 + v) - mp.exp(eps) * w / (1 + w)

    half = Half(
        start=mp.mpf(0),
        end=mp.mpf(1),
        density=lambda v: mp.mpf(1),
        loss=lambda v: end + 2 * mp.log(v + (1 - v) * floor),
        inverse=lambda y: (mp.exp((y - end) / 2) - floor) / (1 - floor),
        low=-end,
        high=end,
        delta=delta,
    )
    # The loss is that of the exponential mechanism.
    closed = lambda eps, direction: bounded_range_closed(end, count, eps)
    return Segment({"remove": half}, count, closed)


def against_normal(count, weights, shifts):
    """N(0, 1) against a mixture with shifts 0, 1, 2, ..."""
    p, q = NormalMixture([mp.mpf(1)], [mp.mpf(0)]), NormalMixture(weights, shifts)
    rest = NormalMixture(weights[1:], shifts[1:])

    def inverse(eps):
        """Newton on the log of the terms that vanish on the left: convex, rising."""
        gap = mp.exp(eps) - weights[0]
        if len(weights) == 3:
            a, b = (weights[k] * mp.exp(-(shifts[k] ** 2) / 2) for k in (2, 1))
            return mp.log(positive_root(a, b, gap))
        x, step = mp.mpf(0), mp.mpf(1)
        while abs(step) > mp.mpf(10) ** (-mp.mp.dps * 2 // 3):
            value = rest.ratio(x)
            slope = mp.fsum(w * s * mp.exp(s * x - s * s / 2) for w, s in rest.parts)
            step = mp.log(value / gap) * value / slope
            x -= step
        return x

    loss = lambda x: mp.log(q.ratio(x))
    return Line(p, q, loss, inverse, mp.log(weights[0]), count=count)


def mixture_of_gaussians(count, sigma, shifts, weights):
    """N(0, 1) against a mixture with three shifts."""
    shifts = [num(s) / num(sigma) for s in shifts]
    assert shifts == [0, 1, 2]
    return against_normal(count, [num(w) for w in weights], shifts)


def group_dpsgd_step(count, sigma, q, group_size):
    """A group of which each member is sampled on its own."""
    q, k = num(q), group_size
    weights = [math.comb(k, j) * q**j * (1 - q) ** (k - j) for j in range(k + 1)]
    return against_normal(count, weights, [j / num(sigma) for j in range(k + 1)])


def replace_one_subsampled_gaussian(count, sigma, q):
    """One record, sampled with probability q, moves from -1 to 1."""
    q, one = num(q), 1 / num(sigma)
    weights = [1 - q, q]
    lower = NormalMixture(weights, [mp.mpf(0), -one])
    upper = NormalMixture(weights, [mp.mpf(0), one])
    near = q * mp.exp(-(one**2) / 2)
    assert one == 1

    def inverse(eps):
        """The ratio of the laws is a quadratic in e^x."""
        root = positive_root(near, -(1 - q) * mp.expm1(eps), mp.exp(eps) * near)
        return mp.log(root)

    loss = lambda x: mp.log(upper.ratio(x) / lower.ratio(x))
    # The inverse has branch points near the line, at loss 0.135 i, 0.3 away from it.
    return Line(lower, upper, loss, inverse, count=count, widest=0.4)


def generalized_gaussian(count, scale, shape):
    """Densities proportional to exp(-|x|^shape), shifted by 1."""
    shape, one = num(shape), 1 / num(scale)
    assert one == 1
    p, q = GeneralizedNormal(shape, mp.mpf(0)), GeneralizedNormal(shape, one)
    loss = lambda x: abs(x) ** shape - abs(x - 1) ** shape
    power = float(shape)

    def inverse(eps):
        """Bisection in doubles, then Newton."""
        level = float(eps)
        low, high = -1e4, 1e4
        while high - low > 1e-13 * (1 + abs(low)):
            x = (low + high) / 2
            above = abs(x) ** power - abs(x - 1) ** power > level
            low, high = (low, x) if above else (x, high)
        x, step = mp.mpf((low + high) / 2), mp.mpf(1)
        sign = lambda t: abs(t) ** (shape - 1) * mp.sign(t)
        while abs(step) > mp.mpf(10) ** (-mp.mp.dps * 3 // 4) * (1 + abs(x)):
            step = (loss(x) - eps) / (shape * (sign(x) - sign(x - 1)))
            x -= step
        return x

    joints = (mp.mpf(0), mp.mpf(1))
    widest = 0.6 if shape > 2 else 2.5
    return Line(p, q, loss, inverse, joints=joints, count=count, widest=widest)


def probabilities(count, p, q):
    """Two laws given by their masses."""
    return Atoms([num(v) for v in p], [num(v) for v in q], count)


def revealed_mixture(count, weights, parts):
    """The index is part of the output: a mean of profiles."""
    assert count == 1
    w = [num(v) for v in weights]
    mu, b = 1 / num(parts[0]["sigma"]), num(parts[1]["b"])
    half = laplace_halves(b, mp.mpf(1))["remove"]

    def second(eps):
        lap = composed(half, nothing, (mp.mpf(0),), eps, tanh_sinh)
        return w[0] * normal_integral(mu, eps) + w[1] * lap

    return Formula(
        lambda eps: w[0] * normal_profile(mu, eps) + w[1] * laplace_profile(b, eps),
        second,
        mp.inf,
    )


def heterogeneous(count, parts):
    """One Gaussian and one Laplace: integrate over either one's output."""
    assert count == 1
    mu, b = 1 / num(parts[0]["sigma"]), num(parts[1]["b"])
    outer = laplace_halves(b, mp.mpf(1))["remove"]
    line = Half(
        start=mp.mpf(-22),
        end=mp.mpf(26),
        joints=[mp.mpf(k) for k in range(-20, 26, 3)],
        density=lambda x: mp.npdf(x - mu),
        loss=lambda x: mu * x - mu * mu / 2,
        inverse=lambda y: y / mu + mu / 2,
        low=-mp.inf,
        high=mp.inf,
    )
    gauss_part = functools.partial(normal_profile, mu)
    laplace_part = functools.partial(laplace_profile, b)
    return Formula(
        lambda eps: composed(outer, gauss_part, (), eps, gauss_rule),
        lambda eps: composed(line, laplace_part, (-1 / b, 1 / b), eps, tanh_sinh),
        mp.inf,
    )


# Group privacy: f composed with itself, f^(k) = 1 - (1 - f)^(k times).


def approx_dp_tradeoff(part, alpha):
    """Beta of (epsilon0, delta0)-DP."""
    e, d = mp.exp(num(part["epsilon0"])), num(part["delta0"])
    return max(mp.mpf(0), 1 - d - e * alpha, (1 - d - alpha) / e)


def laplace_tradeoff(part, alpha):
    """Beta of Lap(1, b) against Lap(0, b)."""
    e = mp.exp(1 / num(part["b"]))
    if alpha < 1 / (2 * e):
        return 1 - e * alpha
    return 1 / (4 * e * alpha) if alpha < mp.mpf(1) / 2 else (1 - alpha) / e


def numeric_tradeoff(pair, alpha):
    """Sup over eps of 1 - delta(eps) - e^eps alpha, from the profile, to 1e-6."""
    grid = (mp.mpf(k) / 500 - 2 for k in range(2001))
    values = (1 - pair.delta(e, "remove") - mp.exp(e) * alpha for e in grid)
    return max(mp.mpf(0), *values)


TRADEOFFS = {
    "approx_dp": (approx_dp_tradeoff, approx_dp),
    "laplace": (laplace_tradeoff, laplace),
}


def group_privacy(part, group_size, alpha):
    """Beta of the k-fold group at alpha."""
    f, build = TRADEOFFS[part["mechanism"]]
    pair = build(1, **{k: v for k, v in part.items() if k != "mechanism"})
    x, beta = num(alpha), mp.mpf(0)
    for _ in range(group_size):
        beta = f(part, x)
        assert abs(numeric_tradeoff(pair, x) - beta) < 1e-5
        x = 1 - beta
    if part["mechanism"] == "laplace":
        # The groups of a log-concave location family are its larger shifts.
        shifted = laplace_tradeoff({"b": num(part["b"]) / group_size}, num(alpha))
        assert abs(shifted - beta) < mp.mpf(10) ** -70
    return beta


# The catalogue: mechanism, parameters, counts, directions.

GAUSS_2_LAPLACE_2 = [
    {"mechanism": "gaussian", "sigma": 2},
    {"mechanism": "laplace", "b": 2},
]
GAUSS_1_LAPLACE_2 = [
    {"mechanism": "gaussian", "sigma": 1},
    {"mechanism": "laplace", "b": 2},
]
FIVE = {"num_categories": 5, "epsilon0": 1}
ATOMS = {"p": [0.5, 0.3, 0.2], "q": [0.2, 0.3, 0.5]}
ONE_SIDED = {"p": [0.6, 0.35, 0.05, 0], "q": [0.1, 0.6, 0, 0.3]}
SHIFTS = {"sigma": 1, "shifts": [0, 1, 2], "weights": [0.9, 0.08, 0.02]}
CATALOGUE = (
    (gaussian, {"sigma": 1}, (1, 10), SYMMETRIC),
    (laplace, {"b": 1}, (1, 2), SYMMETRIC),
    (randomized_response, {"epsilon0": 1}, (1, 10, 100), SYMMETRIC),
    (kary_randomized_response, {**FIVE, "relation": "replace_one"}, (1, 10), SYMMETRIC),
    (kary_randomized_response, {**FIVE, "relation": "zero_out"}, (1, 10), BOTH),
    (approx_dp, {"epsilon0": 0.5, "delta0": 1e-40}, (1, 10), SYMMETRIC),
    (discrete_gaussian, {"sigma": 2, "sensitivity": 1}, (1, 10), SYMMETRIC),
    (discrete_gaussian, {"sigma": 0.7, "sensitivity": 3}, (1, 4), SYMMETRIC),
    (discrete_laplace, {"parameter": 0.5, "sensitivity": 1}, (1, 10), SYMMETRIC),
    (discrete_laplace, {"parameter": 0.5, "sensitivity": 3}, (1, 10), SYMMETRIC),
    (staircase, {"epsilon0": 1, "gamma": 0.3}, (1, 10), SYMMETRIC),
    (exponential_mechanism, {"epsilon0": 1}, (1, 2, 10), SYMMETRIC),
    (mixture_of_gaussians, SHIFTS, (1, 2), BOTH),
    (logistic, {"scale": 1}, (1, 2), SYMMETRIC),
    (generalized_gaussian, {"scale": 1, "shape": 3}, (1, 2), SYMMETRIC),
    (generalized_gaussian, {"scale": 1, "shape": 1.5}, (1, 2), SYMMETRIC),
    (subsampled_laplace, {"b": 1, "q": 0.1}, (1, 2), BOTH),
    (
        subsampled_discrete_laplace,
        {"parameter": 0.5, "sensitivity": 1, "q": 0.1},
        (1, 10),
        BOTH,
    ),
    (
        subsampled_discrete_gaussian,
        {"sigma": 2, "sensitivity": 1, "q": 0.1},
        (1,),
        BOTH,
    ),
    (replace_one_subsampled_gaussian, {"sigma": 1, "q": 0.1}, (1, 2), SYMMETRIC),
    (probabilities, ATOMS, (1, 5), SYMMETRIC),
    (probabilities, ONE_SIDED, (1, 3), BOTH),
    (
        revealed_mixture,
        {"weights": [0.3, 0.7], "parts": GAUSS_1_LAPLACE_2},
        (1,),
        SYMMETRIC,
    ),
    (group_dpsgd_step, {"sigma": 1, "q": 0.1, "group_size": 3}, (1,), BOTH),
    (heterogeneous, {"parts": GAUSS_2_LAPLACE_2}, (1,), SYMMETRIC),
)
F_1_05 = {"mechanism": "approx_dp", "epsilon0": 1, "delta0": 0.05}
GROUPS = (
    (F_1_05, 2),
    (F_1_05, 3),
    ({"mechanism": "laplace", "b": 1}, 2),
)
ALPHAS = ("0.001", "0.02", "0.2", "0.5")


# Thresholds, roots and checks.


def root(pair, direction, target, last):
    """Epsilon at log delta: secant steps, from a bracketed root in low precision.

    Below a finite largest loss the unknown is -log of the distance to it, in which
    log delta is nearly linear at the end of the range. `last` is the root before,
    below this one.
    """
    top = pair.top(direction)
    bounded = mp.isfinite(top)
    to_eps = (lambda t: top - mp.exp(-t)) if bounded else (lambda t: t)

    def miss(t):
        value = pair.delta(to_eps(t), direction)
        return mp.log(value) - target if value > 0 else -mp.inf

    with mp.workdps(pair.coarse or mp.mp.dps):
        low, step = (-mp.log(top - last) if bounded else last), mp.mpf(1)
        while miss(low + step) > 0:
            low, step = low + step, 2 * step
        high = low + step
        a, b = miss(low), miss(high)
        x = high
        for _ in range(200):
            # Illinois: regula falsi that halves the stale end.
            x = (low * b - high * a) / (b - a) if mp.isfinite(b) else (low + high) / 2
            y = miss(x)
            if abs(y) < mp.mpf(10) ** (-mp.mp.dps // 2) or low == high:
                break
            if y > 0:
                low, a, b = x, y, b / 2
            else:
                high, b, a = x, y, a / 2
    t = mp.mpf(x)
    h = mp.mpf(10) ** (-(pair.coarse or mp.mp.dps) // 2)
    before, value = miss(t + h), miss(t)
    step = h
    for _ in range(8):
        if abs(value) < mp.mpf(10) ** (-31):
            break
        # The point before is t + step.
        step *= value / (before - value)
        t, before = t - step, value
        value = miss(t)
    assert abs(value) < mp.mpf(10) ** (-31), (direction, target, value)
    return to_eps(t)


def text(value):
    """The digits that are written."""
    return mp.nstr(value, DIGITS, strip_zeros=False)


def agree(pair, eps, direction, target):
    """Digits of log delta on which the second formula agrees."""
    with mp.workdps(pair.dps + 5 if pair.coarse is None else 38):
        value = mp.log(pair.second(mp.mpf(eps), direction))
        error = abs(value - target) / min(1, abs(target))
        return -mp.log10(error + mp.mpf(10) ** (-60))


def thresholds(pair, direction, last):
    """Epsilons for log delta: zero, small, near the end of the range, negative."""
    top = pair.top(direction)
    end = mp.mpf("0.95") * top if mp.isfinite(top) else last
    end = mp.nstr(end, 2)
    small = "0.1" if num(end) > 0.5 else mp.nstr(num(end) / 4, 1)
    return [f"{Decimal(v):f}".removesuffix(".0") for v in ("0", small, end, "-0.3")]


def entries(build, params, count, direction):
    """All values of one mechanism, count and direction."""
    with mp.workdps(EXACT):
        pair = build(count, **params)
    head = {
        "mechanism": build.__name__,
        "params": params,
        "count": count,
        "direction": direction,
    }
    found, worst, last = [], mp.inf, mp.mpf(0)
    with mp.workdps(pair.dps):
        # Losses of plus infinity leave a floor; only these pairs have a large one.
        atoms = isinstance(pair, Atoms)
        floor = mp.mpf(pair.delta(mp.mpf(10) ** 4, direction) if atoms else 0)
        start = pair.delta(mp.mpf(0), direction)
        for delta in DELTAS if floor < 1e-10 else ():
            if not floor < num(delta) < start:
                continue
            target = mp.log(num(delta))
            if isinstance(pair, Atoms):
                eps = pair.epsilon(num(delta), direction)
            else:
                eps = root(pair, direction, target, last)
            worst = min(worst, agree(pair, eps, direction, target))
            last = eps
            found.append(
                {**head, "quantity": "epsilon", "delta": delta, "value": text(eps)}
            )
        for eps in thresholds(pair, direction, last):
            value = mp.log(pair.delta(num(eps), direction))
            worst = min(worst, agree(pair, num(eps), direction, value))
            found.append(
                {**head, "quantity": "log_delta", "epsilon": eps, "value": text(value)}
            )
    return found, worst


def group_entries():
    """Beta of groups of two and three records."""
    with mp.workdps(EXACT):
        return [
            {
                "mechanism": "group_privacy",
                "params": {"part": part, "group_size": size},
                "count": 1,
                "direction": "remove",
                "quantity": "beta",
                "alpha": alpha,
                "value": text(group_privacy(part, size, alpha)),
            }
            for part, size in GROUPS
            for alpha in ALPHAS
        ]


def main() -> None:
    """Compute every value by both formulas and write those that agree."""
    found = []
    for build, params, counts, directions in CATALOGUE:
        for count in counts:
            for direction in directions:
                more, worst = entries(build, params, count, direction)
                print(build.__name__, params, count, direction, len(more),
                      mp.nstr(worst, 3), flush=True)  # fmt: skip
                assert worst > DIGITS + 2
                found += more
    found += group_entries()
    about = (
        "Catalogue of mechanisms by benchmarks/catalogue_truth.py: mpmath, two "
        "formulas for every value. Directions: remove = with the record against "
        "without, add = exchanged; symmetric pairs have remove only. epsilon at "
        "delta, natural log of delta at epsilon, beta at alpha. Parameters are "
        "exact decimals; shift 1 where no sensitivity is given. Values are strings; "
        "parse with mpmath or float."
    )
    document = {"about": about, "entries": found}
    OUT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
