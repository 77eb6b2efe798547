"""log delta of DP-SGD runs from all over the range, in extended precision.

Independent of the package: the contour integral

    delta(eps) = (1/2 pi) Int exp(N K(z) - eps z) / (z (1 + z)) dtau,  z = c + i tau

of NumPy's long doubles, K by the trapezoid rule over 30 standard deviations of the
noise without the sample.  The runs in `tests/data/wide_truth.json` are drawn at random
(noise multiplier .2 to 1000, sampling probability 1e-6 to 1, up to 1e8 steps, delta
down to e^-690); among the first are those for which earlier versions of the engine
printed an upper bound that was too small.  Every value is computed with two periods;
the values written are those on which both agree to 1e-11.

Run: python benchmarks/wide_truth.py (needs NumPy, on a machine whose long doubles have
64 bits of mantissa; two seconds).
"""

import json
import pathlib

import numpy as np

FILE = pathlib.Path(__file__).resolve().parent.parent / "tests/data/wide_truth.json"
REACH = 30
BLOCK = 256
Long = np.longdouble


class Loss:
    """The privacy loss of one step on a grid, under the noise without the sample."""

    def __init__(self, noise_multiplier: float, sampling_prob: float):
        s, q = Long(noise_multiplier), Long(sampling_prob)
        step = min(s / 8, s**2 / 10)
        x = -REACH * s + step * np.arange(int(2 * REACH * s / step) + 2, dtype=Long)
        self.mass = step * np.exp(-((x / s) ** 2) / 2) / (s * np.sqrt(2 * Long(np.pi)))
        u = (x - Long(0.5)) / s**2
        near = np.log1p(q * np.expm1(np.minimum(u, 50)))
        far = u + np.log(q + (1 - q) * np.exp(-np.maximum(u, 50)))
        self.value = np.where(u < 50, near, far)

    def log_moment(self, order):
        """Log E[e^{order X}] under the noise without the sample."""
        change = (self.mass * np.expm1(order * self.value)).sum()
        if abs(change) < 0.5:
            return np.log1p(change)
        return np.log((self.mass * np.exp(order * self.value)).sum())

    def tilted(self, order):
        """Probabilities, mean and variance after tilting."""
        exponent = order * self.value
        weight = self.mass * np.exp(exponent - exponent.max())
        weight = weight / weight.sum()
        mean = (weight * self.value).sum()
        return weight, mean, (weight * (self.value - mean) ** 2).sum()


def log_delta(loss: Loss, steps: float, epsilon: float, sign: int, fineness: float):
    """Of one direction: sign 1 for "remove", -1 for "add"."""
    count, threshold = Long(steps), Long(epsilon)

    def order(c):
        return 1 + c if sign > 0 else -c

    low, high = Long(-28), Long(34)
    for _ in range(90):
        c = np.exp((low + high) / 2)
        _, mean, _ = loss.tilted(order(c))
        right = sign * count * mean - 1 / c - 1 / (1 + c) > threshold
        low, high = (low, np.log(c)) if right else (np.log(c), high)
    c = np.exp(low)
    weight, mean, variance = loss.tilted(order(c))
    lead = count * loss.log_moment(order(c))
    period = 60 * np.sqrt(count * variance) + 160 / c
    period = max(period, 4 * abs(threshold)) * Long(fineness)
    step = 2 * Long(np.pi) / period
    kept = weight > 1e-40
    weight, away = weight[kept].astype(float), loss.value[kept] - mean
    total, first = Long(0), 0
    while True:
        tau = step * np.arange(first, first + BLOCK).astype(Long)
        angle = np.outer(tau, away).astype(float)
        real = (weight * (-2 * np.sin(angle / 2) ** 2)).sum(1)
        imag = (weight * np.sin(angle)).sum(1)
        modulus = np.exp(count * np.log1p(2 * real + real**2 + imag**2) / 2)
        phase = (
            sign * count * (np.arctan2(imag, 1 + real) + mean * tau) - tau * threshold
        )
        z = c + 1j * tau
        terms = (modulus * np.exp(1j * phase) / (z * (1 + z))).real
        terms[0] /= 2 if first == 0 else 1
        total += terms.sum()
        first += BLOCK
        if modulus[-1] / abs(z[-1] * (1 + z[-1])) < 1e-17 / abs(c * (1 + c)):
            return float(lead - c * threshold + np.log(total * step / Long(np.pi)))


def main() -> None:
    """Computes every value anew."""
    data = json.loads(FILE.read_text(encoding="utf-8"))
    for entry in data["entries"]:
        loss = Loss(entry["noise_multiplier"], entry["sampling_prob"])
        for name, sign in (("remove", 1), ("add", -1)):
            steps, epsilon = entry["num_steps"], entry["epsilon"]
            found = [log_delta(loss, steps, epsilon, sign, x) for x in (1, 1.5)]
            truncated = 1e-11 * max(1, abs(found[0])) + 1e-16 * steps
            if not abs(found[0] - found[1]) <= truncated:
                raise ArithmeticError(f"no agreement for {entry}: {found}")
            entry[f"log_delta_{name}"] = found[1]
    FILE.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
