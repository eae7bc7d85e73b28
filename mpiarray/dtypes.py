"""``jax.dtypes``: questions about element types. The types themselves are in `mpiarray.types.dtypes`."""

from mpiarray.errors import TypePromotionError
from mpiarray.types.dtypes import (
    bfloat16,
    extended,
    finfo,
    float0,
    iinfo,
    issubdtype,
    prng_key,
    promote_types,
    result_type,
    scalar_type_of,
)
from mpiarray.types.dtypes import bit_width as itemsize_bits
from mpiarray.types.dtypes import canonicalize as canonicalize_dtype

__all__ = [
    "TypePromotionError",
    "bfloat16",
    "canonicalize_dtype",
    "extended",
    "finfo",
    "float0",
    "iinfo",
    "issubdtype",
    "itemsize_bits",
    "prng_key",
    "promote_types",
    "result_type",
    "scalar_type_of",
]
