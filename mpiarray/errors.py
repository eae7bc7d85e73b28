"""Every exception class of the package, in one place, so that any layer can raise any of them.

    Exception
    ├── ShardingTypeError                 a sharding rule has no single answer, or inputs disagree
    ├── DuplicateSpecError                a spec uses one mesh axis twice
    ├── ValueError
    │   ├── IndivisibleError              a dimension is not divisible by the axes that partition it
    │   └── TypePromotionError            two dtypes have no common dtype that either may turn into unasked
    ├── TypeError
    │   ├── ConcretizationTypeError       a traced value was used where its number is needed
    │   │   └── TracerBoolConversionError ... in `if`, `while`, `and`, `bool()`
    │   ├── TracerIntegerConversionError  ... as an index or a size
    │   ├── TracerArrayConversionError    ... by a numpy function
    │   └── UnexpectedTracerError         a tracer outlived the function that made it
    ├── IndexError
    │   └── NonConcreteBooleanIndexError  a traced boolean mask would decide a shape
    └── RuntimeError
        ├── KeyReuseError                 a random key was used twice
        ├── JaxRuntimeError               the machine failed: memory, MPI, a callback
        └── InternalError                 a broken promise inside this package: please report it

Errors in use are raised from types, before any communication, so that all ranks raise the same one.
"""

from __future__ import annotations

__all__ = [
    "ConcretizationTypeError",
    "DuplicateSpecError",
    "IndivisibleError",
    "InternalError",
    "JaxRuntimeError",
    "KeyReuseError",
    "NonConcreteBooleanIndexError",
    "ShardingTypeError",
    "TracerArrayConversionError",
    "TracerBoolConversionError",
    "TracerIntegerConversionError",
    "TypePromotionError",
    "UnexpectedTracerError",
]


class ShardingTypeError(Exception):
    """The shardings of the inputs do not determine the sharding of the result."""


class DuplicateSpecError(Exception):
    """A PartitionSpec names one mesh axis more than once."""


class IndivisibleError(ValueError):
    """A dimension's size is not divisible by the product of the mesh axes that partition it."""


class TypePromotionError(ValueError):
    """Two dtypes have no common dtype that either may turn into unasked; one must be converted explicitly."""


class ConcretizationTypeError(TypeError):
    """A traced value, which stands for many possible numbers, was used where one number is needed."""


class TracerBoolConversionError(ConcretizationTypeError):
    """A traced value was used as a condition of Python control flow."""


class TracerIntegerConversionError(TypeError):
    """A traced value was used as a Python integer (an index, a size, a range)."""


class TracerArrayConversionError(TypeError):
    """A traced value was given to a function that wants a numpy array."""


class NonConcreteBooleanIndexError(IndexError):
    """A traced boolean mask was used as an index; the shape of the result would depend on its values."""


class UnexpectedTracerError(TypeError):
    """A tracer was used after the function that it belongs to had returned."""


class KeyReuseError(RuntimeError):
    """A random key was consumed twice."""


class JaxRuntimeError(RuntimeError):
    """Running a program failed for a reason outside the program: memory, MPI, a callback."""


class InternalError(RuntimeError):
    """A promise between two parts of this package was broken. Not the user's fault."""
