r"""DP-SGD's privacy profile and error rates to 16 digits and more, slowly.

An oracle for tests and searches, independent of the package: Poisson-subsampled
Gaussian noise, N steps, in both directions.  With Y the loss of one step,

    delta(eps) = (1/2 pi) Int E[e^{zY}]^N e^{-eps z} / (z (1 + z)) d Im z

and the same with 1/z or 1/(1 + z) for the error rates, in ball arithmetic
(python-flint) of 50 digits.  The expectation is a trapezoid sum over the noise, for
large Im z on a line off the real axis, where it converges on the same grid.  The
contour is z = c + x(t) + i a sinh t, by the trapezoid rule in t: many scales of
Im z take few nodes.  Where sampling is sparse, the expectation decays slowly, and x(t)
bends towards the side on which e^{-eps z} falls.

One step has a closed form, and two steps one integral of it.  Every value is computed
on two contours with different nodes; what the two disagree by, or the last halving of
a step, is its `error`.  Where nodes run out, or the contours disagree by more than
1e-12, `value` is None: it did not converge.

    python benchmarks/oracle.py NOISE Q STEPS add|remove EPSILON...
"""

# pyright: reportMissingImports=false, reportOptionalOperand=false
# pyright: reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportReturnType=false, reportPossiblyUnboundVariable=false

import dataclasses
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterable

import numpy as np

try:
    import flint
    from flint import acb, arb
except ImportError:  # pragma: no cover
    sys.exit("python-flint is missing: pip install 'fdp-jax[oracle]'")

GUARD = 25
AGREEMENT = 1e-12
MOST_NODES = 4000
SECONDS = 45.0
"""After which no other contour is tried."""
_CONTOURS = (
    (25, 1.0, None),
    (25, 0.7, None),
    (25, 1.0, 0.0),
    (60, 0.7, None),
    (60, 0.5, None),
    (25, 1.0, 0.5),
    (60, 1.0, None),
    (60, 1.0, 0.0),
)
"""Digits relative to the contour's lead, of which rare large losses leave far less;
share of the saddle point, for below a leap of it those are all but gone; bend (None:
straight, with nodes at equal distances).  In the order tried."""


@dataclasses.dataclass
class Value:
    """A number, or its logarithm, and how far off it may be (relatively)."""

    value: float | None
    error: float
    digits: str = ""

    @property
    def converged(self) -> bool:
        """Whether two contours agree."""
        return self.value is not None


FAILED = Value(None, math.inf)


@dataclasses.dataclass
class Line:
    """Nodes of the noise on a line Im x = v, where they matter."""

    losses: list
    logs: list


class Run:
    """N steps of the subsampled Gaussian mechanism in one direction."""

    def __init__(self, noise: float, prob: float, steps: int, direction: str):
        if direction not in ("remove", "add"):
            raise ValueError(f"direction must be 'remove' or 'add', not {direction!r}")
        if steps != int(steps) or steps < 1:
            raise ValueError(f"steps must be a whole number from 1 on, not {steps!r}")
        self.noise, self.prob, self.steps = float(noise), float(prob), int(steps)
        self.sign = 1 if direction == "remove" else -1
        self.digits = _CONTOURS[0][0]
        # The exponent of the likelihood ratio in E[e^{zY}] is `order` = base + sign z.
        self.base = 1 if self.sign > 0 else 0
        s = self.noise
        x = np.arange(-40 * s, 40 * s, s / 20)
        self.rough = x, self._rough_loss(x)

    def _rough_loss(self, x):
        u = (x - 0.5) / self.noise**2
        if self.prob == 1:
            return u
        return np.logaddexp(math.log1p(-self.prob), math.log(self.prob) + u)

    def mean(self, c: float) -> tuple[float, float]:
        """Mean and deviation of one step's loss, tilted, about."""
        order = self.base + self.sign * c
        s = self.noise
        x = np.linspace(min(order, 0) - 12 * s, max(order, 0) + 12 * s, 4001)
        loss = self._rough_loss(x)
        logs = order * loss - 0.5 * (x / s) ** 2
        weight = np.exp(logs - logs.max())
        weight /= weight.sum()
        mean = float(weight @ loss)
        spread = float(weight @ (loss - mean) ** 2)
        return self.sign * mean, math.sqrt(spread)

    def tilt(self, epsilon: float, strip: str) -> float:
        """The saddle point of the profile (c > 0) or of both errors (-1 < c < 0)."""

        def slope(c: float) -> float:
            poles = 1 / c + 1 / (1 + c)
            return self.steps * self.mean(c)[0] - epsilon - poles

        if strip == "right":
            low, high = math.log(1e-4), math.log(1e5)
            place = math.exp
        else:
            low, high = -14.0, 14.0
            place = lambda t: -1 / (1 + math.exp(t))
        for _ in range(60):
            middle = 0.5 * (low + high)
            low, high = (low, middle) if slope(place(middle)) > 0 else (middle, high)
        return place(low)

    # ------------------------------------------------------------- nodes of the noise

    @property
    def nats(self) -> float:
        """Minus log of what may be left out."""
        return self.digits * math.log(10) + 10

    def _penalty(self, a, c: float):
        """Log of how |ratio|^order may grow on the line Im x = a."""
        order = self.base + self.sign * c
        half = np.minimum(a / (2 * self.noise**2), 1.5607)
        return max(-order, 0) * -np.log(np.cos(half))

    def _spacing(self, c: float, change: float) -> tuple[float, float]:
        """A step for all frequencies, and the line for the high ones."""
        s = self.noise
        a = np.linspace(0, 0.95 * math.pi * s**2, 400)[1:]
        a = a[a < 60 * s]
        loss = self.nats + 0.5 * (a / s) ** 2 + self._penalty(a, c)
        low = np.max(2 * math.pi * a / (loss + change * a / s**2))
        best, line = 0.0, a[0]
        for v in a[: -1 : max(1, a.size // 60)]:
            above = a[a > v]
            up = np.max(2 * math.pi * (above - v) / loss[a > v])
            down = 2 * math.pi * v / self.nats
            if min(up, down) > best:
                best, line = min(up, down), v
        return min(low, best), line

    def _line(self, v: float, h: float, tilts: Iterable[float]) -> Line:
        s = self.noise
        orders = [self.base + self.sign * c for c in tilts]
        reach = s * math.sqrt(2 * self.nats) * 1.3
        first = math.floor((min(0, *orders) - reach) / h)
        last = math.ceil((max(0, *orders) + reach) / h)
        x = h * np.arange(first, last + 1)
        loss = self._rough_loss(x)
        kept = np.zeros(x.size, bool)
        for order in orders:
            logs = order * loss - 0.5 * (x / s) ** 2
            kept |= logs > logs.max() - 1.2 * self.nats - 0.5 * (v / s) ** 2 - 5
        # The lines' own moduli differ by less than that.
        places = np.nonzero(kept)[0]
        sigma, q, step = arb(s), arb(self.prob), arb(h)
        lead = (step / (sigma * (2 * arb.pi()).sqrt())).log()
        losses, logs = [], []
        for k in range(places[0], places[-1] + 1):
            point = acb(step * (first + k), arb(v))
            u = (2 * point - 1) / (2 * sigma * sigma)
            if self.prob == 1:
                losses.append(u)
            elif u.real > 1:
                losses.append(u + q.log() + ((1 - q) / q * (-u).exp()).log1p())
            else:
                losses.append((q * (u.exp() - 1)).log1p())
            logs.append(lead - point * point / (2 * sigma * sigma))
        return Line(losses, logs)

    # --------------------------------------------------------------------- the contour

    def _integrals(self, epsilon: float, c: float, fine: float, bend: float | None):
        """1/(z(1+z)), 1/z and 1/(1+z) against E[e^{zY}]^N e^{-eps z}."""
        s = self.noise
        _, deviation = self.mean(c)
        spread = deviation * math.sqrt(self.steps)
        poles = min(abs(c), abs(1 + c))
        a = min(poles, 1.5 / max(spread, 1e-12))
        change = 6 * s
        h, v = self._spacing(c, change)
        h *= fine
        v = v if self.sign > 0 else -v
        spike = self.sign * math.log1p(-self.prob) if self.prob < 1 else 0.0
        side = 1 if epsilon > self.steps * spike else -1
        uniform = bend is None
        far = (bend or 0) * s * side
        if c < 0:
            far = 0.0
        tops = [c, c + far, c + 5 * far, c + 20 * far, c + 60 * far]
        lines = {}
        eps, count = arb(epsilon), self.steps
        b = max(a, s)

        def expectation(z, tau: float):
            key = abs(tau) > change
            if key not in lines:
                lines[key] = self._line(v if key else 0.0, h, tops if far else [c])
            line = lines[key]
            order = self.base + self.sign * z
            total = acb(0)
            for loss, log in zip(line.losses, line.logs, strict=True):
                total += (order * loss + log).exp()
            return total

        lead = expectation(acb(c), 0.0).real
        log_lead = count * lead.log() - arb(c) * eps

        def term(t):
            """The integrand times dz / (i dt)."""
            t = arb(t)
            if uniform:
                tau, dtau = t, arb(1)
            else:
                tau, dtau = arb(a) * t.sinh(), arb(a) * t.cosh()
            root = 1 + (tau / b) ** 2
            x = arb(far) * (root.sqrt().sqrt() - 1)
            dx = arb(far) * tau * dtau / (2 * arb(b) ** 2) * root ** arb(-0.75)
            z = acb(arb(c) + x, tau)
            value = (expectation(z, float(tau.mid())) / lead) ** count
            value = value * (-(z - c) * eps).exp() * acb(dtau, -dx)
            parts = value / (z * (1 + z)), value / z, value / (1 + z)
            # Half of the line, doubled: the other one is the conjugate.
            return [p.real / arb.pi() for p in parts]

        def size(parts) -> float:
            return max(_log10(abs(p)) for p in parts)

        step = 2 * math.pi / (4 * spread + 10 / poles) if uniform else 0.16
        sums, nodes, old, end = None, 0, None, None
        while nodes < MOST_NODES:
            if sums is None:
                start = term(0)
                sums = [0.5 * p for p in start]
                scale, k, quiet = size(start), 0, 0
                while quiet < 6:
                    k += 1
                    found = term(k * arb(step))
                    sums = [p + q for p, q in zip(sums, found, strict=True)]
                    quiet = quiet + 1 if size(found) < scale - self.digits - 3 else 0
                    nodes += 1
                    if nodes > MOST_NODES / 4:
                        return None
                end = k * step
            else:
                count_new = int(end / step + 0.5)
                if nodes + count_new > MOST_NODES:
                    return None
                for k in range(count_new):
                    found = term((k + arb(0.5)) * arb(step))
                    sums = [p + q for p, q in zip(sums, found, strict=True)]
                nodes += count_new
                step *= 0.5
            now = [p * step for p in sums]
            if old is not None:
                off = max(
                    float((abs(p - q) / abs(q)).mid())
                    for p, q in zip(old, now, strict=True)
                )
                # The next halving about squares it.
                if off < 1e-10:
                    return log_lead, now, off * off * 1e3
            old = now
        return None

    def _twice(self, epsilon: float, strip: str):
        """On two contours: the values of the second, and how far they differ."""
        saddle, begin = self.tilt(epsilon, strip), time.monotonic()
        for self.digits, share, bend in _CONTOURS:
            if strip == "middle" and share < 1:
                continue
            if time.monotonic() > begin + SECONDS:
                return None
            c = saddle * share
            other = c * 1.02 if strip == "right" else c + 0.07 * min(-c, 1 + c)
            flint.ctx.dps = self.digits + GUARD
            first = self._integrals(epsilon, c, 1.0, bend)
            if first is None:
                continue
            second = self._integrals(epsilon, other, 0.9, bend and bend * 0.9)
            if second is None:
                continue
            return first, second
        return None

    # ----------------------------------------------------------------------- queries

    def log_delta(self, epsilon: float) -> Value:
        """Log delta(epsilon) of this direction, for any real epsilon."""
        flint.ctx.dps = self.digits + GUARD
        if self.steps <= 2:
            return self._few(lambda: _log_of(self._direct(arb(epsilon))))
        found = self._twice(epsilon, "right")
        if found is None:
            return FAILED
        logs = [lead + parts[0].log() for lead, parts, _ in found]
        return _compared(*logs, max(found[0][2], found[1][2]), log=True)

    def errors(self, threshold: float) -> tuple[Value, Value]:
        """Log alpha and log beta of the test that rejects where the loss is larger."""
        flint.ctx.dps = self.digits + GUARD
        if self.steps == 1:
            return tuple(
                self._few(lambda i=i: self._one_errors(arb(threshold))[i].log())
                for i in (0, 1)
            )
        found = self._twice(threshold, "middle")
        if found is None:
            return FAILED, FAILED
        result = []
        for which, sign, shift in ((2, 1, -arb(threshold)), (1, -1, arb(0))):
            logs = []
            for lead, parts, _ in found:
                logs.append(lead + (sign * parts[which]).log() + shift)
            result.append(_compared(*logs, max(found[0][2], found[1][2]), log=True))
        return tuple(result)

    def epsilon(self, log_delta: float, guess: float = 1.0) -> Value:
        """The epsilon of a delta, by the secant method on log delta."""
        return _root(lambda e: self.log_delta(e), log_delta, guess)

    def beta(self, alpha: float, guess: float = 0.0) -> Value:
        """Log beta at a type I error."""
        at = _root(lambda t: self.errors(t)[0], math.log(alpha), guess)
        if not at.converged:
            return FAILED
        found = self.errors(at.value)[1]
        slope = math.exp(at.value + math.log(alpha) - found.value)
        return Value(found.value, found.error + at.error * (1 + slope), found.digits)

    def tpr(self, fpr: float, guess: float = 0.0) -> Value:
        """The power 1 - beta at a type I error."""
        found = self.beta(fpr, guess)
        if not found.converged:
            return FAILED
        return Value(-math.expm1(found.value), found.error * math.exp(found.value))

    def bayes_error(self, prior: float) -> Value:
        """The least error where the record is present with probability `prior`."""
        threshold = math.log1p(-prior) - math.log(prior)
        alpha, beta = self.errors(threshold)
        if not (alpha.converged and beta.converged):
            return FAILED
        value = (1 - prior) * math.exp(alpha.value) + prior * math.exp(beta.value)
        return Value(value, max(alpha.error, beta.error))

    # -------------------------------------------------------------- one or two steps

    def _few(self, value: Callable[[], arb]) -> Value:
        """At two precisions."""
        found = []
        for digits in (50, 65):
            flint.ctx.dps = digits
            one = value()
            if one is None:
                return FAILED
            found.append(one)
        flint.ctx.dps = self.digits + GUARD
        return _compared(*found, 0.0, log=True)

    def _direct(self, epsilon):
        if self.steps == 1:
            return self._one_delta(epsilon)
        return self._two_delta(epsilon)

    def _one_errors(self, threshold):
        """P(Y > t) without the record's share, and Q(Y <= t)."""
        s, q = arb(self.noise), arb(self.prob)
        odds = (threshold * self.sign).exp()
        gap = odds - (1 - q)
        if not gap > 0:
            # Every loss of "remove" is larger, none of "add".
            return (arb(1), arb(0)) if self.sign > 0 else (arb(0), arb(1))
        x = arb(1) / 2 + s * s * (gap / q).log()
        below = lambda y: (-y / (s * arb(2).sqrt())).erfc() / 2
        above = lambda y: (y / (s * arb(2).sqrt())).erfc() / 2
        if self.sign > 0:
            return above(x), (1 - q) * below(x) + q * below(x - 1)
        return (1 - q) * below(x) + q * below(x - 1), above(x)

    def _one_delta(self, epsilon):
        alpha, beta = self._one_errors(epsilon)
        power = 1 - beta
        s, q = arb(self.noise), arb(self.prob)
        odds = (epsilon * self.sign).exp()
        gap = odds - (1 - q)
        if not gap > 0:
            return power - epsilon.exp() * alpha
        x = arb(1) / 2 + s * s * (gap / q).log()
        below = lambda y: (-y / (s * arb(2).sqrt())).erfc() / 2
        above = lambda y: (y / (s * arb(2).sqrt())).erfc() / 2
        if self.sign > 0:
            return (1 - q) * above(x) + q * above(x - 1) - epsilon.exp() * above(x)
        shared = (1 - q) * below(x) + q * below(x - 1)
        return below(x) - epsilon.exp() * shared

    def _two_delta(self, epsilon):
        """E[delta of one at epsilon - Y], by tanh-sinh sums on panels of the noise."""
        s, q = arb(self.noise), arb(self.prob)
        flint.ctx.dps += 60
        try:
            loss = lambda x: (q * (((2 * x - 1) / (2 * s * s)).exp() - 1)).log1p()

            def density(x):
                base = (-x * x / (2 * s * s)).exp() / (s * (2 * arb.pi()).sqrt())
                return base * loss(x).exp() if self.sign > 0 else base

            def integrand(x):
                inner = self._one_delta(epsilon - self.sign * loss(x))
                return density(x) * inner

            kinks = []
            if self.prob < 1:
                # Where the other step's profile becomes trivial.
                edge = (epsilon * self.sign).exp() / (1 - q) - (1 - q)
                if edge > 0:
                    kinks.append(float((arb(0.5) + s * s * (edge / q).log()).mid()))
            reach, width = 45 * self.noise, 2 * self.noise
            cuts = {-reach + width * k for k in range(int((reach + 3 + reach) / width))}
            low, high = min(cuts), max(cuts)
            cuts = sorted(cuts | {k for k in kinks if low < k < high})
            results = []
            for nodes in (60, 90):
                total = arb(0)
                for left, right in itertools.pairwise(cuts):
                    total += _tanh_sinh(integrand, arb(left), arb(right), nodes)
                results.append(total)
            if abs(results[0] - results[1]) > abs(results[1]) * arb(10) ** -16:
                return None
            return results[1]
        finally:
            flint.ctx.dps -= 60


def _tanh_sinh(f, low, high, nodes: int):
    half, middle = (high - low) / 2, (high + low) / 2
    step = arb(4.2) / nodes
    total = arb(0)
    for k in range(-nodes, nodes + 1):
        t = step * k
        u = arb.pi() / 2 * t.sinh()
        weight = arb.pi() / 2 * t.cosh() / u.cosh() ** 2
        total += weight * f(middle + half * u.tanh())
    return total * step * half


def _log_of(x):
    return None if x is None or not x > 0 else x.log()


def _log10(x) -> float:
    """Of the mid-point, also far below the smallest double."""
    x = x.mid()
    if not x > 0:
        return -math.inf
    return float((x.log() / arb(10).log()).mid())


def _compared(one, other, error: float, *, log: bool) -> Value:
    """The second value, where it agrees with the first."""
    apart = abs(one - other).mid()
    if not log:
        apart = apart / abs(other).mid()
    apart = float(apart) + float(other.rad()) + error
    if not apart < AGREEMENT:
        return FAILED
    return Value(float(other.mid()), apart, other.mid().str(25, radius=False))


def _root(f: Callable[[float], Value], target: float, guess: float) -> Value:
    """Where a decreasing function is `target`, with the error that its own makes."""
    a, b = guess, guess * 1.01 + 0.01
    fa, fb = f(a), f(b)
    for _ in range(40):
        if not (fa.converged and fb.converged) or fa.value == fb.value:
            return FAILED
        slope = (fb.value - fa.value) / (b - a)
        move = (target - fb.value) / slope
        move = max(-3 * abs(b - a) - 1, min(3 * abs(b - a) + 1, move))
        if abs(move) <= 1e-15 * (1 + abs(b)):
            break
        a, fa, b = b, fb, b + move
        fb = f(b)
    return Value(b, abs(fb.error / slope) + abs(move))


def main() -> None:
    """Print log delta in one direction at some thresholds."""
    noise, prob, steps, direction, *epsilons = sys.argv[1:]
    run = Run(float(noise), float(prob), int(float(steps)), direction)
    for epsilon in map(float, epsilons):
        found = run.log_delta(epsilon)
        text = found.digits if found.converged else "did not converge"
        print(f"epsilon {epsilon}: log delta {text} +- {found.error:.1e}", flush=True)


if __name__ == "__main__":
    main()
