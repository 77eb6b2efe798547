"""Epsilon of one DP-SGD run at very small delta, to 20 digits, by mpmath.

Independent of the package: the contour integral

    delta(eps) = (1/2 pi) Int exp(N K(z) - eps z) / (z (1 + z)) dtau,  z = c + i tau

in 40-digit arithmetic, K by the trapezoid rule, eps by the secant method. Every value
is computed with two sets of nodes, ranges and precisions; only the digits on which
both agree are written. The result, `tests/data/tail_truth.json`, is what
`against_dp_accounting.py` and the tests compare with.

Run: python benchmarks/tail_truth.py (needs mpmath; some seconds).
"""

import json
import pathlib

import mpmath as mp

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests/data/tail_truth.json"
SIGMA, Q, N = "1", "0.01", 10_000
DELTAS = (
    *("1e-5", "1e-7", "1e-9", "1e-10", "1e-11", "1e-12", "1e-13", "1e-14"),
    *("1e-20", "1e-50", "1e-100", "1e-300"),
)


class Contour:
    """The line Re z = c for the composed subsampled Gaussian, remove direction."""

    def __init__(self, c, fineness: int):
        s, q = mp.mpf(SIGMA), mp.mpf(Q)
        step = s / (6 + 2 * fineness)
        width = 12 + fineness
        count = int(mp.ceil((1 + c + 2 * width * s) / step))
        x = [k * step - width * s for k in range(count + 1)]
        self.c = c
        self.losses = [mp.log1p(q * mp.expm1((2 * v - 1) / (2 * s**2))) for v in x]
        density = [mp.exp(-(v**2) / (2 * s**2)) / (s * mp.sqrt(2 * mp.pi)) for v in x]
        self.terms = [
            step * d * mp.exp((1 + c) * l)
            for d, l in zip(density, self.losses, strict=True)
        ]
        self.mass = mp.fsum(self.terms)
        mean, square = (
            mp.fsum(t * l**p for t, l in zip(self.terms, self.losses, strict=True))
            / self.mass
            for p in (1, 2)
        )
        self.slope = N * mean
        # Period in epsilon: aliases fall like exp(-c R) on the left and, on the
        # right, like the tail of the tilted loss.
        deviation = mp.sqrt(N * (square - mean**2))
        period = (70 + 20 * fineness) / c + (14 + 4 * fineness) * (1 + deviation)
        self.h = 2 * mp.pi / period
        self.characteristic = self._characteristic()

    def _characteristic(self):
        """Tilted characteristic function to the power N at k h, k = 0, 1, ..."""
        values = [mp.mpc(1)]
        turns = [mp.expj(self.h * l) for l in self.losses]
        terms = [mp.mpc(t) for t in self.terms]
        while abs(values[-1]) > mp.mpf(10) ** (-mp.mp.dps + 8):
            terms = [t * r for t, r in zip(terms, turns, strict=True)]
            values.append((mp.fsum(terms) / self.mass) ** N)
        return values

    def log_delta(self, eps):
        """Logarithm of delta(eps)."""
        total = mp.mpf(0)
        for k, phi in enumerate(self.characteristic):
            z = mp.mpc(self.c, k * self.h)
            term = mp.re(phi * mp.expj(-eps * k * self.h) / (z * (1 + z)))
            total += term / 2 if k == 0 else term
        front = N * mp.log(self.mass) - eps * self.c
        return front + mp.log(self.h / mp.pi * total)


def saddle(log_delta):
    """A tilt near the saddle point at log delta, to a percent, in low precision."""
    with mp.workdps(15):
        low, high = mp.mpf("0.3"), mp.mpf(200)
        c = eps = mp.mpf(0)
        while high / low > mp.mpf("1.01"):
            c = mp.sqrt(low * high)
            s, q = mp.mpf(SIGMA), mp.mpf(Q)
            x = [mp.mpf(k) / 4 - 10 * s for k in range(int(4 * (c + 21)))]
            losses = [mp.log1p(q * mp.expm1((2 * v - 1) / (2 * s**2))) for v in x]
            terms = [
                mp.exp((1 + c) * l - v**2 / (2 * s**2)) / (4 * s * mp.sqrt(2 * mp.pi))
                for v, l in zip(x, losses, strict=True)
            ]
            mass = mp.fsum(terms)
            slope = (
                N * mp.fsum(t * l for t, l in zip(terms, losses, strict=True)) / mass
            )
            eps = slope - 1 / c - 1 / (1 + c)
            # Chernoff's exponent is log delta up to a few units.
            exponent = N * mp.log(mass) - c * eps - mp.log(c * (1 + c))
            low, high = (c, high) if exponent > log_delta else (low, c)
        return c, eps


def epsilon(contour: Contour, log_delta, guess):
    """Epsilon at log delta by the secant method."""
    a, b = mp.mpf(guess), mp.mpf(guess) * mp.mpf("1.001")
    fa, fb = contour.log_delta(a) - log_delta, contour.log_delta(b) - log_delta
    for _ in range(30):
        if abs(fb) < mp.mpf(10) ** (-mp.mp.dps + 8) or fa == fb:
            break
        a, b, fa = b, b - fb * (b - a) / (fb - fa), fb
        fb = contour.log_delta(b) - log_delta
    return b


def main() -> None:
    """Compute every value twice and write the digits that agree."""
    entries = []
    for delta in DELTAS:
        found = []
        for dps, fineness in ((40, 1), (46, 2)):
            with mp.workdps(dps):
                target = mp.log(mp.mpf(delta))
                tilt, guess = saddle(target)
                contour = Contour(mp.mpf(tilt) * (1 + mp.mpf(fineness) / 50), fineness)
                found.append(epsilon(contour, target, guess))
        agreement = abs(found[0] / found[1] - 1)
        digits = min(25, int(-mp.log10(agreement + mp.mpf(10) ** (-30))))
        print(delta, mp.nstr(found[1], digits), digits, flush=True)
        assert digits >= 18, (delta, digits)
        entries.append(
            {
                "sigma": float(SIGMA),
                "q": float(Q),
                "N": N,
                "direction": "remove",
                "delta": delta,
                "epsilon": mp.nstr(found[1], digits),
                "digits": digits,
            }
        )
    about = (
        "Epsilon of DP-SGD (Poisson sampling, add or remove one, remove direction), "
        "by benchmarks/tail_truth.py: mpmath contour integral, two sets of nodes."
    )
    document = {"about": about, "entries": entries}
    OUT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
