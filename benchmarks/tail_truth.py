"""Epsilon of one DP-SGD run at very small delta, to 20 digits, by mpmath.

Independent of the package: the contour integral

    delta(eps) = (1/2 pi) Int exp(N K(c + i tau) - eps (c + i tau))
                              / ((c + i tau) (1 + c + i tau)) dtau

in 50-digit arithmetic, K by the trapezoid rule, eps by the secant method. Every value
is computed with two sets of nodes and digits; only the digits on which both agree
are written. The result, `tests/data/tail_truth.json`, is what `against_dp_accounting.py`
and the tests compare with.

Run: python benchmarks/tail_truth.py (needs mpmath; about a minute).
"""

import json
import pathlib

import mpmath as mp

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests/data/tail_truth.json"
SIGMA, Q, N = "1", "0.01", 10_000
DELTAS = (
    *("1e-5", "1e-7", "1e-9", "1e-10", "1e-11", "1e-12", "1e-13", "1e-14"),
    *("1e-20", "1e-50", "1e-100", "1e-200", "1e-300"),
)


class Truth:
    """The composed subsampled Gaussian, remove direction, in high precision."""

    def __init__(self, sigma: str, q: str, n: int, fineness: int):
        self.sigma, self.q, self.n = mp.mpf(sigma), mp.mpf(q), n
        self.step = self.sigma / (12 * fineness)
        self.fineness = fineness
        self.width = 13 + fineness

    def nodes(self, c):
        """Losses and weights of the trapezoid rule for a tilt c."""
        s, q = self.sigma, self.q
        low, high = -self.width * s, (1 + c) + self.width * s
        count = int(mp.ceil((high - low) / self.step))
        losses, weights = [], []
        for k in range(count + 1):
            x = low + k * self.step
            losses.append(mp.log1p(q * mp.expm1((2 * x - 1) / (2 * s**2))))
            density = mp.exp(-(x**2) / (2 * s**2)) / (s * mp.sqrt(2 * mp.pi))
            weights.append(self.step * density)
        return losses, weights

    def tilted(self, losses, weights, z):
        """E_P exp((1+z) X) from the nodes."""
        return mp.fsum(
            w * mp.exp((1 + z) * x) for x, w in zip(losses, weights, strict=True)
        )

    def log_delta(self, eps, c):
        """Logarithm of delta(eps), integrated along Re z = c."""
        losses, weights = self.nodes(c)
        k_c = mp.log(self.tilted(losses, weights, c))
        # Period in epsilon: aliases fall as exp(-c R) on the left and, on the right,
        # like a normal tail of the tilted loss, whose deviation is a few units here.
        h = 2 * mp.pi / ((60 + 30 * self.fineness) / c + 40 * self.fineness)
        total = mp.mpf(0)
        k = 0
        while True:
            tau = k * h
            z = mp.mpc(c, tau)
            phase = self.n * (mp.log(self.tilted(losses, weights, z)) - k_c)
            term = mp.re(mp.exp(phase - eps * mp.mpc(0, tau)) / (z * (1 + z)))
            total += term / 2 if k == 0 else term
            if k > 5 and mp.exp(mp.re(phase)) / abs(z * (1 + z)) < total * mp.mpf(
                10
            ) ** (-mp.mp.dps + 12):
                break
            k += 1
        return self.n * k_c - eps * c + mp.log(h / mp.pi * total)

    def tilt(self, eps):
        """Saddle point: N K'(c) - 1/c - 1/(1+c) = eps, to three digits."""
        low, high = mp.mpf("0.05"), mp.mpf(400)
        for _ in range(40):
            c = mp.sqrt(low * high)
            losses, weights = self.nodes(c)
            terms = [
                w * mp.exp((1 + c) * x) for x, w in zip(losses, weights, strict=True)
            ]
            mean = mp.fsum(t * x for t, x in zip(terms, losses, strict=True))
            slope = self.n * mean / mp.fsum(terms) - 1 / c - 1 / (1 + c)
            low, high = (low, c) if slope > eps else (c, high)
            if high / low < mp.mpf("1.001"):
                break
        return mp.sqrt(low * high)

    def epsilon(self, delta: str, guess):
        """Epsilon at delta by the secant method on log delta."""
        target = mp.log(mp.mpf(delta))
        with mp.workdps(15):
            c = self.tilt(guess)
        a, b = mp.mpf(guess), mp.mpf(guess) * mp.mpf("1.001")
        fa, fb = (self.log_delta(e, c) - target for e in (a, b))
        for _ in range(12):
            a, b, fa = b, b - fb * (b - a) / (fb - fa), fb
            if abs(b - a) < mp.mpf(10) ** (-28):
                break
            fb = self.log_delta(b, c) - target
        return b


def main() -> None:
    """Compute every value twice and write the digits that agree."""
    entries = []
    guess = mp.mpf(6)
    for delta in DELTAS:
        for _ in range(2):  # the second pass starts at the first one's answer
            mp.mp.dps = 45
            coarse = Truth(SIGMA, Q, N, fineness=1).epsilon(delta, guess)
            guess = coarse
        mp.mp.dps = 55
        fine = Truth(SIGMA, Q, N, fineness=2).epsilon(delta, guess)
        agreement = abs(coarse / fine - 1)
        digits = 25 if agreement == 0 else min(25, int(-mp.log10(agreement)))
        assert digits >= 16, (delta, digits)
        entries.append(
            {
                "sigma": float(SIGMA),
                "q": float(Q),
                "N": N,
                "direction": "remove",
                "delta": delta,
                "epsilon": mp.nstr(fine, digits),
                "digits": digits,
            }
        )
        print(delta, mp.nstr(fine, digits), digits, flush=True)
        guess = fine * (mp.mpf("1.05") if mp.mpf(delta) > mp.mpf("1e-14") else 1.9)
    about = (
        "Epsilon of DP-SGD (Poisson sampling, add or remove one, remove direction), "
        "by benchmarks/tail_truth.py: mpmath contour integral, two sets of nodes."
    )
    OUT.write_text(
        json.dumps({"about": about, "entries": entries}, indent=1) + "\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
