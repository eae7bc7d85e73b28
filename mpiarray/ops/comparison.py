"""Comparisons: they give bool, and have no derivative.

NaN compares as in IEEE 754: unequal to everything.  Complex numbers and keys have equality only.
"""

from __future__ import annotations

import numpy as np

from mpiarray.ops.elementwise import nary, to_bool, unary

_NONE = (None, None)

eq = nary("eq", "bifck", np.equal, _NONE, result=to_bool, hlo_name="compare")
ne = nary("ne", "bifck", np.not_equal, _NONE, result=to_bool, hlo_name="compare")
lt = nary("lt", "bif", np.less, _NONE, result=to_bool, hlo_name="compare")
le = nary("le", "bif", np.less_equal, _NONE, result=to_bool, hlo_name="compare")
gt = nary("gt", "bif", np.greater, _NONE, result=to_bool, hlo_name="compare")
ge = nary("ge", "bif", np.greater_equal, _NONE, result=to_bool, hlo_name="compare")

is_finite = unary("is_finite", "f", np.isfinite, None, result=to_bool, hlo_name="is-finite")
