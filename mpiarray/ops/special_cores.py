"""Special functions of one float64 variable (and the Hurwitz zeta function), on flat arrays.

These are the cores that `special_kernels.py` wraps for other dtypes and shapes; here a block is always a contiguous 1-D
float64 array of moderate size, and floating-point warnings are off. Coefficients without a source were computed for
this file in 40-digit arithmetic.

Sources: W. J. Cody, "Rational Chebyshev approximation for the error function", Math. Comp. 23 (1969); M. Giles,
"Approximating the erfinv function", GPU Computing Gems (2011); Abramowitz and Stegun 6.1, 6.3, 9.6, 9.7 and 23.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Core = Callable[[np.ndarray], np.ndarray]


def polynomial(coefficients: Sequence[float], x: np.ndarray) -> np.ndarray:
    """The polynomial with the given coefficients, highest power first, in the dtype of `x`."""
    kind = x.dtype.type
    value = np.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        value *= x
        value += kind(c)
    return value


def chebyshev(coefficients: Sequence[float], t: np.ndarray) -> np.ndarray:
    """The sum of ``coefficients[k] * T_k(t)`` for t in [-1, 1] (Clenshaw's recurrence)."""
    twice = 2 * t
    ahead, behind = np.zeros_like(t), np.zeros_like(t)
    for c in coefficients[:0:-1]:
        ahead, behind = twice * ahead - behind + c, ahead
    return t * ahead - behind + coefficients[0]


def pieces(x: np.ndarray, *cases: tuple[np.ndarray, Core]) -> np.ndarray:
    """Each function where its mask is true; NaN where none is. Functions see only their own elements."""
    out = np.full_like(x, np.nan)
    for mask, f in cases:
        if mask.all():
            return f(x)
        if mask.any():
            out[mask] = f(x[mask])
    return out


# ---------------------------------------------------------------------------------------------------------------------
# Error function

_ERF_NUM = (
    1.85777706184603153e-1,
    3.16112374387056560e0,
    1.13864154151050156e2,
    3.77485237685302021e2,
    3.20937758913846947e3,
)
_ERF_DEN = (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3)
_ERFC_NUM = (
    2.15311535474403846e-8,
    5.64188496988670089e-1,
    8.88314979438837594e0,
    6.61191906371416295e1,
    2.98635138197400131e2,
    8.81952221241769090e2,
    1.71204761263407058e3,
    2.05107837782607147e3,
    1.23033935479799725e3,
)
_ERFC_DEN = (
    1.0,
    1.57449261107098347e1,
    1.17693950891312499e2,
    5.37181101862009858e2,
    1.62138957456669019e3,
    3.29079923573345963e3,
    4.36261909014324716e3,
    3.43936767414372164e3,
    1.23033935480374942e3,
)
_TAIL_NUM = (
    1.63153871373020978e-2,
    3.05326634961232344e-1,
    3.60344899949804439e-1,
    1.25781726111229246e-1,
    1.60837851487422766e-2,
    6.58749161529837803e-4,
)
_TAIL_DEN = (
    1.0,
    2.56852019228982242e0,
    1.87295284992346725e0,
    5.27905102951428412e-1,
    6.05183413124413191e-2,
    2.33520497626869185e-3,
)


def _erf_small(x: np.ndarray) -> np.ndarray:
    z = x * x
    return x * polynomial(_ERF_NUM, z) / polynomial(_ERF_DEN, z)


def _exp_minus_square(y: np.ndarray) -> np.ndarray:
    # y*y is rounded, which would cost exp(-y*y) digits; a multiple of 1/16 has an exact square.
    near = np.trunc(16 * y) / 16
    return np.exp(-near * near) * np.exp(-(y - near) * (y + near))


def _erfc_middle(y: np.ndarray) -> np.ndarray:
    return _exp_minus_square(y) * polynomial(_ERFC_NUM, y) / polynomial(_ERFC_DEN, y)


def _erfc_tail(y: np.ndarray) -> np.ndarray:
    y = np.minimum(y, 28.0)  # erfc(27.3) is less than the smallest number
    z = 1 / (y * y)
    r = z * polynomial(_TAIL_NUM, z) / polynomial(_TAIL_DEN, z)
    return _exp_minus_square(y) * (1 / np.sqrt(np.pi) - r) / y


def _erfc_positive(y: np.ndarray) -> np.ndarray:
    """erfc for y > 0.46875."""
    return pieces(y, (y <= 4, _erfc_middle), (y > 4, _erfc_tail))


def erf(x: np.ndarray) -> np.ndarray:
    y = np.abs(x)
    return pieces(
        x,
        (y <= 0.46875, _erf_small),
        (y > 0.46875, lambda v: np.copysign(1 - _erfc_positive(np.abs(v)), v)),
    )


def erfc(x: np.ndarray) -> np.ndarray:
    return pieces(
        x,
        (np.abs(x) <= 0.46875, lambda v: 1 - _erf_small(v)),
        (x > 0.46875, _erfc_positive),
        (x < -0.46875, lambda v: 2 - _erfc_positive(-v)),
    )


# In w = -log(1 - x**2), or its square root, about the middle of each interval.
_ERF_INV_SINGLE = (
    (
        2.81022636e-08,
        3.43273939e-07,
        -3.5233877e-06,
        -4.39150654e-06,
        0.00021858087,
        -0.00125372503,
        -0.00417768164,
        0.246640727,
        1.50140941,
    ),
    (
        -0.000200214257,
        0.000100950558,
        0.00134934322,
        -0.00367342844,
        0.00573950773,
        -0.0076224613,
        0.00943887047,
        1.00167406,
        2.83297682,
    ),
)
_ERF_INV_DOUBLE = (
    (
        -3.64441206401782e-21,
        -1.6850591381820166e-19,
        1.28584807152564e-18,
        1.1157877678025181e-17,
        -1.333171662854621e-16,
        2.0972767875968562e-17,
        6.637638134358324e-15,
        -4.054566272975207e-14,
        -8.151934197605472e-14,
        2.6335093153082323e-12,
        -1.2975133253453532e-11,
        -5.415412054294628e-11,
        1.0512122733215323e-09,
        -4.112633980346984e-09,
        -2.9070369957882005e-08,
        4.2347877827932404e-07,
        -1.3654692000834679e-06,
        -1.3882523362786469e-05,
        0.00018673420803405714,
        -0.000740702534166267,
        -0.006033670871430149,
        0.24015818242558962,
        1.6536545626831027,
    ),
    (
        2.2137376921775787e-09,
        9.075656193888539e-08,
        -2.7517406297064545e-07,
        1.8239629214389228e-08,
        1.5027403968909828e-06,
        -4.013867526981546e-06,
        2.9234449089955446e-06,
        1.2475304481671779e-05,
        -4.7318229009055734e-05,
        6.828485145957318e-05,
        2.4031110387097894e-05,
        -0.0003550375203628475,
        0.0009532893797373805,
        -0.0016882755560235047,
        0.002491442096107851,
        -0.003751208507569241,
        0.005370914553590064,
        1.0052589676941592,
        3.0838856104922208,
    ),
    (
        -2.7109920616438573e-11,
        -2.555641816996525e-10,
        1.5076572693500548e-09,
        -3.789465440126737e-09,
        7.61570120807834e-09,
        -1.496002662714924e-08,
        2.914795345090108e-08,
        -6.771199775845234e-08,
        2.2900482228026655e-07,
        -9.9298272942317e-07,
        4.526062597223154e-06,
        -1.968177810553167e-05,
        7.599527703001776e-05,
        -0.00021503011930044477,
        -0.00013871931833623122,
        1.0103004648645344,
        4.849906401408584,
    ),
)


def erf_inv_single(x: np.ndarray) -> np.ndarray:
    """Giles' single precision polynomials, for float32, with XLA's order of operations.

    Mostly XLA's bits, at most 3 ulp from them. Like them less accurate near the ends, where x * x is rounded.
    """
    one = np.float32(1)
    w = -np.log1p(-x * x)
    center = polynomial(_ERF_INV_SINGLE[0], w - np.float32(2.5))
    far = w >= 5
    if far.any():
        center = np.where(far, polynomial(_ERF_INV_SINGLE[1], np.sqrt(w) - np.float32(3)), center)
    return np.where(np.abs(x) == one, x * np.float32(np.inf), center * x)


def erf_inv(x: np.ndarray) -> np.ndarray:
    w = -np.log((1 - x) * (1 + x))
    result = x * pieces(
        w,
        (w < 6.25, lambda v: polynomial(_ERF_INV_DOUBLE[0], v - 3.125)),
        ((w >= 6.25) & (w < 16), lambda v: polynomial(_ERF_INV_DOUBLE[1], np.sqrt(v) - 3.25)),
        (w >= 16, lambda v: polynomial(_ERF_INV_DOUBLE[2], np.sqrt(v) - 5)),
    )
    return np.where(np.abs(x) == 1, x * np.inf, result)


# ---------------------------------------------------------------------------------------------------------------------
# Gamma function

# (-1)**k * (zeta(k) - 1) / k for k = 2, 3, ...: log gamma(2 + z) is (1 - euler) * z + sum of these times z**k.
_LGAMMA2 = (
    0.3224670334241132,
    -0.0673523010531981,
    0.020580808427784546,
    -0.007385551028673986,
    0.0028905103307415234,
    -0.001192753911703261,
    0.0005096695247430425,
    -0.00022315475845357939,
    9.945751278180853e-05,
    -4.492623673813314e-05,
    2.050721277567069e-05,
    -9.439488275268397e-06,
    4.374866789907488e-06,
    -2.039215753801366e-06,
    9.55141213040742e-07,
    -4.492469198764566e-07,
    2.1207184805554665e-07,
    -1.0043224823968099e-07,
    4.7698101693639804e-08,
    -2.2711094608943164e-08,
    1.0838659214896955e-08,
    -5.183475041970047e-09,
    2.4836745438024785e-09,
    -1.1921401405860912e-09,
    5.731367241678862e-10,
    -2.7595228851242334e-10,
    1.330476437424449e-10,
)

# B(2k) / (2k * (2k-1)): the asymptotic series of log gamma, in odd powers of 1/x.
_STIRLING = (
    0.08333333333333333,
    -0.002777777777777778,
    0.0007936507936507937,
    -0.0005952380952380953,
    0.0008417508417508417,
    -0.0019175269175269176,
    0.00641025641025641,
    -0.029550653594771242,
)

# B(2k) / 2k: the same for digamma, in even powers of 1/x.
_DIGAMMA = (
    0.08333333333333333,
    -0.008333333333333333,
    0.003968253968253968,
    -0.004166666666666667,
    0.007575757575757576,
    -0.021092796092796094,
    0.08333333333333333,
    -0.4432598039215686,
)

_EULER = 0.5772156649015329


def stirling_error(x: np.ndarray) -> np.ndarray:
    """log gamma(x+1) - ((x+1/2) log x - x + log(2 pi)/2), for x >= 10."""
    return polynomial(_STIRLING[::-1], 1 / (x * x)) / x


def _lgamma_about_2(z: np.ndarray) -> np.ndarray:
    return z * ((1 - _EULER) + z * polynomial(_LGAMMA2[::-1], z))


def _lgamma_middle(x: np.ndarray) -> np.ndarray:
    product = np.ones_like(x)
    for _ in range(8):
        above = x > 2.5
        x = np.where(above, x - 1, x)
        product = np.where(above, product * x, product)
    return _lgamma_about_2(x - 2) + np.log(product)


def _lgamma_large(x: np.ndarray) -> np.ndarray:
    log = np.log(x)
    return x * (log - 1) + (0.5 * np.log(2 * np.pi) - 0.5 * log + stirling_error(x))


def _lgamma_positive(x: np.ndarray) -> np.ndarray:
    return pieces(
        x,
        (x < 0.5, lambda v: _lgamma_about_2(v) - np.log1p(v) - np.log(v)),
        ((x >= 0.5) & (x <= 1.5), lambda v: _lgamma_about_2(v - 1) - np.log1p(v - 1)),
        ((x > 1.5) & (x < 10), _lgamma_middle),
        (x >= 10, _lgamma_large),
    )


def _lgamma_negative(x: np.ndarray) -> np.ndarray:
    y = -x
    part = y - np.floor(y)
    sine = np.sin(np.pi * np.minimum(part, 1 - part))
    return np.where(part == 0, np.inf, np.log(np.pi / (y * sine)) - _lgamma_positive(y))


def lgamma(x: np.ndarray) -> np.ndarray:
    return pieces(
        x,
        (x > 0, lambda v: np.where(v == np.inf, np.inf, _lgamma_positive(v))),
        (x == 0, lambda v: np.full_like(v, np.inf)),
        (x < 0, lambda v: np.where(v == -np.inf, np.inf, _lgamma_negative(v))),
    )


def _digamma_positive(x: np.ndarray) -> np.ndarray:
    shift = np.zeros_like(x)
    for _ in range(10):
        below = x < 10
        shift = np.where(below, shift + 1 / x, shift)
        x = np.where(below, x + 1, x)
    z = 1 / (x * x)
    return np.log(x) - 0.5 / x - z * polynomial(_DIGAMMA[::-1], z) - shift


def _digamma_negative(x: np.ndarray) -> np.ndarray:
    part = x - np.rint(x)
    return np.where(part == 0, np.nan, _digamma_positive(1 - x) - np.pi / np.tan(np.pi * part))


def digamma(x: np.ndarray) -> np.ndarray:
    return pieces(x, (x > 0, _digamma_positive), (x <= 0, _digamma_negative))


# B(2k) / (2k)!: the terms of the Euler-Maclaurin formula.
_ZETA = (
    0.08333333333333333,
    -0.001388888888888889,
    3.306878306878307e-05,
    -8.267195767195768e-07,
    2.08767569878681e-08,
    -5.284190138687493e-10,
    1.3382536530684679e-11,
    -3.3896802963225827e-13,
    8.586062056277845e-15,
    -2.174868698558062e-16,
    5.5090028283602295e-18,
    -1.3954464685812522e-19,
)


def zeta(s: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The sum of ``(q + n) ** -s`` over n = 0, 1, ... for s > 1."""
    total = np.zeros_like(s)
    # Below zero the terms grow until q + n passes it.
    lowest = q.min(initial=0.0, where=np.isfinite(q) & (q > -1000))
    for _ in range(int(np.ceil(-lowest))):
        below = q < 0
        total = np.where(below, total + q**-s, total)
        q = np.where(below, q + 1, q)
    for _ in range(12):
        total = total + q**-s
        q = q + 1
    power = q**-s
    tail = power * q / (s - 1) + 0.5 * power
    rising, inverse = s.copy(), 1 / q
    for k, c in enumerate(_ZETA):
        tail = tail + c * rising * power * inverse
        rising = rising * (s + (2 * k + 1)) * (s + (2 * k + 2))
        inverse = inverse / (q * q)
    return np.where(power == 0, total, total + tail)


def zeta_everywhere(s: np.ndarray, q: np.ndarray) -> np.ndarray:
    """`zeta` with its poles and the places where it is not real."""
    with_sign = (s == np.rint(s)) | (q > 0)
    good = (s > 1) & with_sign & (q > -1000) & np.isfinite(s)
    pole = (q <= 0) & (q == np.rint(q)) & (s > 1)
    safe_q = np.where(good & ~pole, q, 1.0)
    value = zeta(np.where(good, s, 2.0), safe_q)
    value = np.where(good, value, np.nan)
    # An infinite s leaves the first term: 1 where q is 1.
    value = np.where((s == np.inf) & (q > 0), np.where(q == 1, 1.0, np.where(q > 1, 0.0, np.inf)), value)
    return np.where(pole | (s == 1), np.where(np.isnan(q), np.nan, np.inf), value)


# ---------------------------------------------------------------------------------------------------------------------
# Modified Bessel functions, times exp(-|x|). Chebyshev coefficients of, for x in [0, 8], exp(-x) I0(x) and
# exp(-x) I1(x) / x in x/4 - 1; for x > 8, sqrt(x) exp(-x) I(x) in 16/x - 1.

_I0_SMALL = (
    0.33839763720473803,
    -0.3046826723431984,
    0.17162090152220877,
    -0.09490109704804764,
    0.04930528423967071,
    -0.02373741480589947,
    0.010546460394594998,
    -0.004324309995050576,
    0.0016394756169413357,
    -0.0005763755745385824,
    0.00018850288509584165,
    -5.754195010082104e-05,
    1.6448448070728896e-05,
    -4.4167383584587505e-06,
    1.1173875391201037e-06,
    -2.670793853940612e-07,
    6.046995022541919e-08,
    -1.300025009986248e-08,
    2.6598237246823866e-09,
    -5.189795601635263e-10,
    9.675809035373237e-11,
    -1.726826291441556e-11,
    2.95505266312964e-12,
    -4.856446783111929e-13,
    7.676185498604936e-14,
    -1.1685332877993451e-14,
    1.715391285555133e-15,
    -2.431279846547955e-16,
    3.3307945188222384e-17,
)

_I0_LARGE = (
    0.4022452055070544,
    0.0033691164782556943,
    6.889758346916825e-05,
    2.8913705208347567e-06,
    2.0489185894690638e-07,
    2.266668990498178e-08,
    3.3962320257083865e-09,
    4.94060238822497e-10,
    1.1889147107846439e-11,
    -3.1499165279632416e-11,
    -1.3215811840447713e-11,
    -1.7941785315068062e-12,
    7.180124451383666e-13,
    3.8527783827421426e-13,
    1.54008621752141e-14,
    -4.150569347287222e-14,
    -9.554846698828307e-15,
    3.8116806693526224e-15,
    1.7725601330565263e-15,
    -3.425485619677219e-16,
    -2.8276239805165836e-16,
    3.461222867697461e-17,
    4.46562142029676e-17,
    -4.830504485944182e-18,
    -7.233180487874754e-18,
)

_I1_SMALL = (
    0.12629359322181682,
    -0.17641651835783406,
    0.1026436586898471,
    -0.05294598120809499,
    0.024726449030626516,
    -0.010564084894626197,
    0.004156422944312888,
    -0.0015135724506312532,
    0.0005122859561685758,
    -0.00016176081582589674,
    4.781565107550054e-05,
    -1.3273163656039436e-05,
    3.4702513081376785e-06,
    -8.568720264695455e-07,
    2.0032947535521353e-07,
    -4.445059128796328e-08,
    9.381537386495773e-09,
    -1.8872497517228294e-09,
    3.625590281552117e-10,
    -6.663489723502027e-11,
    1.1736186298890901e-11,
    -1.9839743977649436e-12,
    3.223793365945575e-13,
    -5.042185504727912e-14,
    7.600684294735408e-15,
    -1.1055969477353862e-15,
    1.5536319577362005e-16,
    -2.111421214358166e-17,
    2.7779141127610464e-18,
)

_I1_LARGE = (
    0.38928811750914005,
    -0.009761097491361469,
    -0.00011058893876262371,
    -3.882564808877691e-06,
    -2.512236237870209e-07,
    -2.6314688468895196e-08,
    -3.835380385964237e-09,
    -5.589743462196584e-10,
    -1.8974958123505413e-11,
    3.2526035830154884e-11,
    1.4125807436613782e-11,
    2.0356285441470896e-12,
    -7.198551776245908e-13,
    -4.0835511110921974e-13,
    -2.1015418427726643e-14,
    4.272440016711951e-14,
    1.0420276984128802e-14,
    -3.8144030724370075e-15,
    -1.8803547755107825e-15,
    3.3082023109209285e-16,
    2.96262899764595e-16,
    -3.209525921993424e-17,
    -4.6503053684893586e-17,
    4.414348323071708e-18,
    7.517296310842105e-18,
)


def i0e(x: np.ndarray) -> np.ndarray:
    y = np.abs(x)
    return pieces(
        y,
        (y <= 8, lambda v: chebyshev(_I0_SMALL, v / 4 - 1)),
        (y > 8, lambda v: chebyshev(_I0_LARGE, 16 / v - 1) / np.sqrt(v)),
    )


def i1e(x: np.ndarray) -> np.ndarray:
    y = np.abs(x)
    value = pieces(
        y,
        (y <= 8, lambda v: v * chebyshev(_I1_SMALL, v / 4 - 1)),
        (y > 8, lambda v: chebyshev(_I1_LARGE, 16 / v - 1) / np.sqrt(v)),
    )
    return np.copysign(value, x)
