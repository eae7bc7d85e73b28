"""Greatest common divisors and least common multiples of integers.

Ops of their own, because numpy computes them at once where a program of other ops would need a loop.
"""

from __future__ import annotations

import numpy as np

from mpiarray.ops.elementwise import nary, wrapped

_NONE = (None, None)

gcd = nary("gcd", "i", wrapped(np.gcd), _NONE)
lcm = nary("lcm", "i", wrapped(np.lcm), _NONE)
