"""The natural logarithm, bit for bit as kube-scheduler computes it.

Scores are rounded to integers, so a difference in the last bit may change a score. The C library's result differs for one
integer in a hundred. This is the algorithm of Go's math.Log (FreeBSD's e_log.c), for numbers above zero.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

SIZES_KEPT: Final = 65_536

_HALF_ROOT: Final = math.sqrt(2) / 2
_LN2_HIGH: Final = 6.93147180369123816490e-01
_LN2_LOW: Final = 1.90821492927058770002e-10
_L1, _L2, _L3, _L4, _L5, _L6, _L7 = (
    6.666666666666735130e-01,
    3.999999999940941908e-01,
    2.857142874366239149e-01,
    2.222219843214978396e-01,
    1.818357216161805012e-01,
    1.531383769920937332e-01,
    1.479819860511658591e-01,
)


@lru_cache(maxsize=SIZES_KEPT)
def natural_log(number: int) -> float:
    """Returns ln(number) for number > 0."""
    fraction, exponent = math.frexp(float(number))
    if fraction < _HALF_ROOT:
        fraction, exponent = 2 * fraction, exponent - 1
    f = fraction - 1
    s = f / (2 + f)
    s2 = s * s
    s4 = s2 * s2
    odd = s2 * (_L1 + s4 * (_L3 + s4 * (_L5 + s4 * _L7)))
    even = s4 * (_L2 + s4 * (_L4 + s4 * _L6))
    half = 0.5 * f * f
    return exponent * _LN2_HIGH - ((half - (s * (half + odd + even) + exponent * _LN2_LOW)) - f)
