"""DP-SGD in NumPy, with hand-written gradients: shares nothing with the package."""

import numpy as np


def softmax(logits):
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


def _parts(weights, images, labels):
    """Of each layer its input and the derivative of the loss in its output."""
    w1, b1, w2, b2 = weights
    hidden = images @ w1.T + b1
    active = np.maximum(hidden, 0)
    wrong = softmax(active @ w2.T + b2)
    wrong[np.arange(len(labels)), labels] -= 1
    return (images, (wrong @ w2) * (hidden > 0)), (active, wrong)


def per_example_gradients(weights, images, labels):
    """Of the cross entropy of a network with one hidden layer and ReLU."""
    layers = _parts(weights, images, labels)
    pairs = ((back[:, :, None] * x[:, None, :], back) for x, back in layers)
    return sum(pairs, ())


def clipped_sum(gradients, norm):
    squares = [np.square(g).sum(axis=tuple(range(1, g.ndim))) for g in gradients]
    lengths = np.sqrt(sum(squares))
    factors = np.minimum(1, norm / np.maximum(lengths, 1e-300))
    return [np.tensordot(factors, g, 1) for g in gradients]


def _clipped_sum_by_layers(layers, norm):
    """The same: the length of an outer product is the product of two lengths."""
    square = lambda x: np.square(x).sum(axis=1)
    lengths = np.sqrt(sum(square(back) * (1 + square(x)) for x, back in layers))
    factors = np.minimum(1, norm / np.maximum(lengths, 1e-300))[:, None]
    pairs = (((factors * b).T @ x, (factors * b).sum(axis=0)) for x, b in layers)
    return sum(pairs, ())


def train(images, labels, *, noise, prob, steps, norm, rate, width, seed):
    """Weights after so many steps of plain SGD on private means."""
    random = np.random.default_rng(seed)
    shapes = [(width, images.shape[1]), (width,), (10, width), (10,)]
    weights = [random.uniform(-1, 1, s) / np.sqrt(s[-1]) for s in shapes]
    for _ in range(steps):
        batch = random.random(len(labels)) < prob
        layers = _parts(weights, images[batch], labels[batch])
        total = _clipped_sum_by_layers(layers, norm)
        noisy = [t + noise * norm * random.normal(size=t.shape) for t in total]
        weights = [
            w - rate * t / (prob * len(labels))
            for w, t in zip(weights, noisy, strict=True)
        ]
    return weights


def accuracy(weights, images, labels):
    w1, b1, w2, b2 = weights
    logits = np.maximum(images @ w1.T + b1, 0) @ w2.T + b2
    return np.mean(logits.argmax(axis=1) == labels)
