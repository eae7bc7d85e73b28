"""Comparisons: they give bool, and have no derivative.

NaN compares as in IEEE 754: unequal to everything.  Complex numbers and keys have equality only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mpiarray.ops.elementwise import nary, to_bool, unary

_NONE = (None, None)


def _code(order: str) -> Callable[..., Any]:
    return lambda b, x, y: b.compare(order, x, y)


eq = nary("eq", "bifck", np.equal, _NONE, result=to_bool, hlo_name="compare", code=_code("eq"))
ne = nary("ne", "bifck", np.not_equal, _NONE, result=to_bool, hlo_name="compare", code=_code("ne"))
lt = nary("lt", "bif", np.less, _NONE, result=to_bool, hlo_name="compare", code=_code("lt"))
le = nary("le", "bif", np.less_equal, _NONE, result=to_bool, hlo_name="compare", code=_code("le"))
gt = nary("gt", "bif", np.greater, _NONE, result=to_bool, hlo_name="compare", code=_code("gt"))
ge = nary("ge", "bif", np.greater_equal, _NONE, result=to_bool, hlo_name="compare", code=_code("ge"))

is_finite = unary(
    "is_finite", "f", np.isfinite, None, result=to_bool, hlo_name="is-finite", code=lambda b, x: b.is_finite(x)
)
