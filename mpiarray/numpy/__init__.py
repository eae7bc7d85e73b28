"""numpy's functions on sharded arrays: `import mpiarray.numpy as jnp`.

Each module says in `__all__` which names it contributes.
"""

# ruff: noqa: F403

import numpy as _np

from mpiarray.numpy import fft, linalg
from mpiarray.numpy.arithmetic import *
from mpiarray.numpy.array import Array as ndarray
from mpiarray.numpy.bit_packing import *
from mpiarray.numpy.choices import *
from mpiarray.numpy.comparison import *
from mpiarray.numpy.complex_numbers import *
from mpiarray.numpy.creation import *
from mpiarray.numpy.cumulative import *
from mpiarray.numpy.editing import *
from mpiarray.numpy.einsum import *
from mpiarray.numpy.elementary import *
from mpiarray.numpy.equality import *
from mpiarray.numpy.histograms import *
from mpiarray.numpy.manipulation import *
from mpiarray.numpy.matrices import *
from mpiarray.numpy.nan_reductions import *
from mpiarray.numpy.nonzeros import *
from mpiarray.numpy.padding import *
from mpiarray.numpy.polynomials import *
from mpiarray.numpy.positions import *
from mpiarray.numpy.products import *
from mpiarray.numpy.quantiles import *
from mpiarray.numpy.queries import *
from mpiarray.numpy.ranges import *
from mpiarray.numpy.reductions import *
from mpiarray.numpy.scalar_types import *
from mpiarray.numpy.scalar_types import bool_ as bool
from mpiarray.numpy.selection import *
from mpiarray.numpy.sets import *
from mpiarray.numpy.sorting import *
from mpiarray.numpy.statistics import *
from mpiarray.numpy.taking import *
from mpiarray.numpy.ufunc_class import *
from mpiarray.numpy.ufuncs import *
from mpiarray.numpy.unwrapping import *
from mpiarray.numpy.vectorizing import *
from mpiarray.numpy.windows import *

pi, e, euler_gamma, inf, nan, newaxis = _np.pi, _np.e, _np.euler_gamma, _np.inf, _np.nan, None

# numpy's abstract dtypes, for `issubdtype`
character, complexfloating, flexible, floating, generic = (
    _np.character,
    _np.complexfloating,
    _np.flexible,
    _np.floating,
    _np.generic,
)
inexact, integer, number, object_, signedinteger = _np.inexact, _np.integer, _np.number, _np.object_, _np.signedinteger
unsignedinteger, ComplexWarning = _np.unsignedinteger, _np.exceptions.ComplexWarning

# what numpy does to any array
array_repr, array_str, iterable = _np.array_repr, _np.array_str, _np.iterable
get_printoptions, printoptions, set_printoptions = _np.get_printoptions, _np.printoptions, _np.set_printoptions
save, savez = _np.save, _np.savez
