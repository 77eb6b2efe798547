"""Moments of the normal law's tail: the Mills ratio, its derivatives and differences.

    h_k(x) = int_0^inf t^k exp(-x t - t^2 / 2) dt,    x >= 0,

where h_0 = Phic / phi is the Mills ratio, h_k' = -h_{k+1} and
k h_{k-1} = h_{k+1} + x h_k. h_0 and h_1 are ratios of polynomials. Read downwards the
recursion only adds positive numbers, so two Chebyshev series (for h_5 and h_6) give all
moments between to rounding error.

References:
    J. M. Shepherd and J. G. Laframboise, "Chebyshev approximation of
    (1 + 2x) exp(x^2) erfc x in 0 <= x < inf", Math. Comp. 36 (1981), for the variable
    (x - c) / (x + c).
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from ._arithmetic import polynomial
from ._quadrature import unit_rule

# Coefficients in powers of t = (x - 5) / (x + 5) of h_k(x) (x + 1.625)^(k+1) / k! for
# k = 5 (left) and k = 6 (right): a Chebyshev interpolant of degree 33, first omitted
# coefficient 2e-17, rewritten in powers of t (their absolute sum is only 23, so nothing
# is lost). The power of x keeps the function within [0.7, 3.3] on the half line.
_CENTER = 5.0
_SHIFT = 1.625
_TOP = 5
_MOMENT_SERIES = (
    (2.7718534481284602, 3.000871577384361),
    (-2.0741264536383444, -1.8843897422124154),
    (-1.3679331064060658, -2.7231092070647613),
    (3.2915131605963404, 4.33342341468189),
    (-1.4964494489644327, -0.5252042813357722),
    (-1.3404371967746194, -3.2866015187613336),
    (1.8814009386282646, 2.385778079185589),
    (-0.34922237904066233, 0.8731015530786879),
    (-0.8148278498094604, -1.870612232366358),
    (0.5687406322503771, 0.3482226201875694),
    (0.11873799583474354, 0.8125640919270336),
    (-0.28123615406497027, -0.44351337325765),
    (0.04641318818947214, -0.22568148327255344),
    (0.08934579502974054, 0.23998561464034113),
    (-0.03648299900570732, 0.03887512816588141),
    (-0.022756631849864473, -0.09600960878124208),
    (0.014735702331452494, -0.0022109763873462526),
    (0.0056034918627088336, 0.0335287478079693),
    (-0.0047818723860850966, -0.0008067387983581732),
    (-0.001565120153362569, -0.01109139498698946),
    (0.0013927341734622466, 4.0190614887933654e-05),
    (0.0005166771197847624, 0.0035690984246250085),
    (-0.00037091907964119787, 0.00025167843603084866),
    (-0.00018486437822881567, -0.001101743026776735),
    (8.743817791157405e-05, -0.00019668162548476526),
    (6.406023190386751e-05, 0.0003134397915682727),
    (-1.692259038505341e-05, 9.15838661012009e-05),
    (-1.953894091064027e-05, -7.741569585694225e-05),
    (2.3501380598628422e-06, -2.895595875128828e-05),
    (4.7439052790356734e-06, 1.5241517358449296e-05),
    (-1.7538766154925634e-07, 5.783852530319528e-06),
    (-7.917968104580585e-07, -2.0827203576695046e-06),
    (1.1607503162409852e-09, -5.526568470094323e-07),
    (6.650850076965654e-08, 1.4534642947488095e-07),
)

# Numerators and denominators in powers of t = (x - 3.5) / (x + 3.5) of
# h_k(x) (x + c)^(k+1) for k = 0 (c = 1.25) and k = 1 (c = 1.625): rational interpolants
# of degrees 11 and 12 in the zeros of a Chebyshev polynomial, relative error below
# 1e-17. These two are most of all moments asked for, and a third of the series long.
_RATIO_CENTER = 3.5
_RATIO_SHIFTS = (1.25, 1.625)
_RATIOS = (
    (
        (1.266196902599063, 1.0),
        (-0.5892577179081812, -0.17932141035625607),
        (1.0632674466557719, 0.7245923438904625),
        (-0.16208587073620104, 0.04589692562998495),
        (0.21361089218635831, 0.19406698590732926),
        (0.067023079616622, 0.04421827748447044),
        (-0.01286918407132488, 0.028310935426283695),
        (0.025707330262943553, 0.007464891273125486),
        (-0.0055404272887025294, 0.002145571536275319),
        (0.0019649435757190283, 0.0003952786570682772),
        (-0.00021110503568515205, 5.1787558172374644e-05),
        (1.8623025338640492e-05, 3.3258748053180102e-06),
    ),
    (
        (1.7601333011789926, 1.0),
        (-1.2136298319879228, -0.07617680490234653),
        (1.944884794960176, 0.920440509328403),
        (-0.4570715554271839, 0.17987937218158512),
        (0.4250248018448854, 0.3594773216768751),
        (0.1626221305607998, 0.13367214063288668),
        (-0.022719610365913454, 0.08771688749345972),
        (0.054756824225317656, 0.03369496022020985),
        (0.00047422239908175365, 0.012754904217323584),
        (0.0004516889396391622, 0.0036391633473676385),
        (0.0012973993561041309, 0.0008222799545762369),
        (-0.0001892124710439343, 0.0001268380122634268),
        (2.343418530577964e-05, 1.0815235634327899e-05),
    ),
)

_NODES = 10
"""Of a Gauss-Legendre rule."""


def _top_moments(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The two highest scaled moments, by Horner's rule."""
    table = np.asarray(_MOMENT_SERIES, x.dtype)
    # Not (x - c) / (x + c), which is inf / inf at the far end.
    t = (1.0 - 2.0 * _CENTER / (x + _CENTER))[..., None]
    value = polynomial(table[::-1], t)
    return value[..., 0], value[..., 1]


@partial(jax.jit, static_argnums=0)
def _ratio_moment(order: int, x: jax.Array) -> jax.Array:
    """Moment of order 0 or 1, as a ratio of polynomials."""
    t = 1.0 - 2.0 * _RATIO_CENTER / (x + _RATIO_CENTER)
    above, below = (polynomial(c, t) for c in zip(*_RATIOS[order][::-1], strict=True))
    # A division comes last: XLA repeats a chain of sums and products, here the whole
    # ratio, in each of its uses, but no division.
    return above / below / (x + _RATIO_SHIFTS[order]) ** (order + 1)


@partial(jax.jit, static_argnums=0)
def _series_moment(order: int, x: jax.Array) -> jax.Array:
    """Moment of order 2 to 6, from the series and the recursion."""
    low, high = _top_moments(x)
    away = x + _SHIFT
    scale = 1.0 / away
    ratio = 1.0 - _SHIFT * scale  # x / (x + shift), also for x = inf
    for k in range(_TOP, order, -1):
        low, high = (k + 1) * scale * scale * high + ratio * low, low
    value = high if order > _TOP else low
    return float(math.factorial(order)) * value / away ** (order + 1)


def _moment(order: int, x: jax.Array) -> jax.Array:
    """Moment of order 0 to 6, without a rule for its derivative."""
    return (_ratio_moment if order < len(_RATIOS) else _series_moment)(order, x)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def mills_moment(order: int, x: jax.Array) -> jax.Array:
    """Moment h_k(x) of order k (0 to 6) for x >= 0; order 0 is the Mills ratio."""
    if order <= _TOP + 1:
        return _moment(order, x)
    # Only reached by derivatives of very high order; loses digits for large x.
    lower, upper = mills_moment(order - 2, x), mills_moment(order - 1, x)
    return (order - 1) * lower - x * upper


@mills_moment.defjvp
def _mills_moment_jvp(order, primals, tangents):
    (x,), (dx,) = primals, tangents
    return mills_moment(order, x), -mills_moment(order + 1, x) * dx


def mills_parts(a: jax.Array, width: jax.Array) -> tuple[jax.Array, ...]:
    """`(m(a) - m(a + width), m(a), m(a + width))` of Mills ratios, a and width >= 0.

    The difference has full relative accuracy for any width, also below the spacing of
    the numbers around `a`. For use under a derivative rule: differentiating it is legal
    but not accurate.
    """
    # While the two ratios differ by less than about a third, integrate the derivative;
    # beyond that, subtracting loses no more than two bits.
    narrow = width < 0.5 * (1.0 + a)
    step = jnp.where(narrow, width, 0.0)
    nodes, weights = (x.astype(a.dtype) for x in unit_rule(_NODES))
    inner = a[..., None] + step[..., None] * nodes
    integral = step * jnp.sum(weights * _moment(1, inner), axis=-1)
    left, right = _moment(0, jnp.stack([a, a + width]))
    return jnp.where(narrow, integral, left - right), left, right
