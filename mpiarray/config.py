"""Settings of the package: JAX's options that have a meaning here, and those of MPI.

`config.update(name, value)` sets one, reading an attribute gets it. The start values come from environment variables:
`JAX_...` for JAX's options, `MPIARRAY_...` for ours. They must be equal on all ranks. A setting holds for the
process, not for a thread. An option is listed here only if something obeys it, or if its one supported value
is what happens anyway; every other name is refused.

    option                      variable                    default    meaning
    jax_enable_x64              JAX_ENABLE_X64              False      64-bit dtypes are not narrowed
    jax_num_cpu_devices         JAX_NUM_CPU_DEVICES         -1         use the first n ranks as devices; -1: all
    jax_debug_nans              JAX_DEBUG_NANS              False      a NaN in a result raises FloatingPointError
    jax_disable_jit             JAX_DISABLE_JIT             False      jit runs its function eagerly
    jax_platforms               JAX_PLATFORMS               'cpu'      only 'cpu'
    jax_platform_name           JAX_PLATFORM_NAME           'cpu'      only 'cpu'
    jax_default_matmul_precision JAX_DEFAULT_MATMUL_PRECISION None     a lower bound; products are never less precise
    jax_threefry_partitionable  JAX_THREEFRY_PARTITIONABLE  True       only True
    jax_default_prng_impl       JAX_DEFAULT_PRNG_IMPL       'threefry2x32'  only this
    jax_numpy_dtype_promotion   JAX_NUMPY_DTYPE_PROMOTION   'standard' only this
    check                       MPIARRAY_CHECK              False      ranks compare what they do before communicating
    timeout                     MPIARRAY_TIMEOUT            None       seconds before a stuck collective aborts the job
    deterministic               MPIARRAY_DETERMINISTIC      False      reductions add in rank order
    abort                       MPIARRAY_ABORT              True       an uncaught exception aborts all ranks
    gather_warn_bytes           MPIARRAY_GATHER_WARN_BYTES  268435456  warn when a larger array is read on the host
    exchange_bytes              MPIARRAY_EXCHANGE_BYTES     67108864   largest message buffer of an exchange
    pool_bytes                  MPIARRAY_POOL_BYTES         None       memory kept for reuse; None: by the machine; 0: none
    machine_file                MPIARRAY_MACHINE_FILE       None       where measured speeds are kept (the user's cache folder)
    exchange                    MPIARRAY_EXCHANGE           'auto'     how blocks are exchanged: pieces, long, packed, typed; auto: found out
    sums                        MPIARRAY_SUMS               'auto'     how blocks are reduced: mpi, ring; auto: large ones by ring
    overlap                     MPIARRAY_OVERLAP            False      compiled programs start collectives early, wait late
    llvm                        MPIARRAY_LLVM               'auto'     chains of cheap operations are compiled: True, False; 'auto': of large blocks, if llvmlite is installed
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

__all__ = ["Config", "config"]

_TRUE = ("1", "true", "yes", "on", "y", "t")
_FALSE = ("0", "false", "no", "off", "n", "f", "")


class _Option(NamedTuple):
    variable: str
    default: Any
    read: Callable[[str], Any]  # text of the variable -> value
    accept: Callable[[Any], Any]  # value -> value as stored; ValueError or TypeError says what is wanted


def _read_bool(text: str) -> bool:
    word = text.strip().lower()
    if word not in _TRUE + _FALSE:
        raise ValueError("expected one of 1, true, yes, on, 0, false, no, off")
    return word in _TRUE


def _read_bool_or(word: str) -> Callable[[str], bool | str]:
    return lambda text: word if text.strip().lower() == word else _read_bool(text)


def _read_optional(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: None if text.strip().lower() in ("", "none") else kind(text)


def _bool(value: Any) -> bool:
    if value not in (True, False):
        raise TypeError("expected True or False")
    return bool(value)


def _int(least: int) -> Callable[[Any], int]:
    def accept(value: Any) -> int:
        if isinstance(value, bool) or int(value) != value:
            raise TypeError("expected an integer")
        if value < least:
            raise ValueError(f"expected at least {least}")
        return int(value)

    return accept


def _optional_bytes(value: Any) -> int | None:
    return None if value is None else _int(0)(value)


def _num_devices(value: Any) -> int:
    if value in (-1, None):
        return -1
    return _int(1)(value)


def _timeout(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError("expected a number of seconds or None")
    if not value > 0:
        raise ValueError("expected a positive number of seconds, or None for no limit")
    return float(value)


def _one_of(*values: Any) -> Callable[[Any], Any]:
    def accept(value: Any) -> Any:
        if value not in values:
            raise ValueError(f"supported: {', '.join(repr(v) for v in values)}")
        return value

    return accept


def _platform(value: Any) -> str:
    _one_of("cpu", "", None)(value)
    return "cpu"


def _path(value: Any) -> str | None:
    if value is not None and not isinstance(value, (str, os.PathLike)):
        raise TypeError("expected a path or None")
    return None if value is None else os.fspath(value)


_PRECISIONS = (None, "default", "high", "highest", "bfloat16", "tensorfloat32", "float32", "fastest")

_OPTIONS: dict[str, _Option] = {
    "jax_enable_x64": _Option("JAX_ENABLE_X64", False, _read_bool, _bool),
    "jax_num_cpu_devices": _Option("JAX_NUM_CPU_DEVICES", -1, int, _num_devices),
    "jax_debug_nans": _Option("JAX_DEBUG_NANS", False, _read_bool, _bool),
    "jax_disable_jit": _Option("JAX_DISABLE_JIT", False, _read_bool, _bool),
    "jax_platforms": _Option("JAX_PLATFORMS", "cpu", str, _platform),
    "jax_platform_name": _Option("JAX_PLATFORM_NAME", "cpu", str, _platform),
    "jax_default_matmul_precision": _Option(
        "JAX_DEFAULT_MATMUL_PRECISION", None, _read_optional(str), _one_of(*_PRECISIONS)
    ),
    "jax_threefry_partitionable": _Option("JAX_THREEFRY_PARTITIONABLE", True, _read_bool, _one_of(True)),
    "jax_default_prng_impl": _Option("JAX_DEFAULT_PRNG_IMPL", "threefry2x32", str, _one_of("threefry2x32")),
    "jax_numpy_dtype_promotion": _Option("JAX_NUMPY_DTYPE_PROMOTION", "standard", str, _one_of("standard")),
    "check": _Option("MPIARRAY_CHECK", False, _read_bool, _bool),
    "timeout": _Option("MPIARRAY_TIMEOUT", None, _read_optional(float), _timeout),
    "deterministic": _Option("MPIARRAY_DETERMINISTIC", False, _read_bool, _bool),
    "abort": _Option("MPIARRAY_ABORT", True, _read_bool, _bool),
    "gather_warn_bytes": _Option("MPIARRAY_GATHER_WARN_BYTES", 256 << 20, int, _int(0)),
    "exchange_bytes": _Option("MPIARRAY_EXCHANGE_BYTES", 64 << 20, int, _int(1)),
    "pool_bytes": _Option("MPIARRAY_POOL_BYTES", None, _read_optional(int), _optional_bytes),
    "machine_file": _Option("MPIARRAY_MACHINE_FILE", None, _read_optional(str), _path),
    "exchange": _Option("MPIARRAY_EXCHANGE", "auto", str, _one_of("auto", "pieces", "long", "packed", "typed")),
    "sums": _Option("MPIARRAY_SUMS", "auto", str, _one_of("auto", "mpi", "ring")),
    "overlap": _Option("MPIARRAY_OVERLAP", False, _read_bool, _bool),
    "llvm": _Option("MPIARRAY_LLVM", "auto", _read_bool_or("auto"), _one_of("auto", True, False)),
}


class Config:
    """The settings, one attribute each. Setting an attribute is the same as `update`."""

    jax_enable_x64: bool
    jax_num_cpu_devices: int
    jax_debug_nans: bool
    jax_disable_jit: bool
    jax_platforms: str
    jax_platform_name: str
    jax_default_matmul_precision: str | None
    jax_threefry_partitionable: bool
    jax_default_prng_impl: str
    jax_numpy_dtype_promotion: str
    check: bool
    timeout: float | None
    deterministic: bool
    abort: bool
    gather_warn_bytes: int
    exchange_bytes: int
    pool_bytes: int | None
    generation: int  # grows with every change: what was prepared for one generation holds for it
    machine_file: str | None
    exchange: str
    sums: str
    overlap: bool
    llvm: bool | str
    _devices_are_known: bool

    def __init__(self, environment: Mapping[str, str]):
        object.__setattr__(self, "_devices_are_known", False)
        object.__setattr__(self, "generation", 0)
        for name, option in _OPTIONS.items():
            value = option.default
            text = environment.get(option.variable)
            if text is not None:
                try:
                    value = option.accept(option.read(text))
                except (TypeError, ValueError) as error:
                    raise ValueError(f"environment variable {option.variable}={text!r}: {error}") from None
            object.__setattr__(self, name, value)

    def update(self, name: str, value: Any) -> None:
        """Set one option.

        Raises:
          AttributeError: there is no such option.
          TypeError, ValueError: the value is not one that the option can have.
          RuntimeError: the number of devices is already in use.
        """
        option = _OPTIONS.get(name)
        if option is None:
            raise AttributeError(f"Unrecognized config option: {name!r}. Options: {', '.join(_OPTIONS)}")
        try:
            value = option.accept(value)
        except (TypeError, ValueError) as error:
            raise type(error)(f"config.update({name!r}, {value!r}): {error}") from None
        if name == "jax_num_cpu_devices" and self._devices_are_known and value != self.jax_num_cpu_devices:
            raise RuntimeError(
                "jax_num_cpu_devices config should be updated before backends are initialized, that is before the "
                "first array, mesh or call of jax.devices(). Set it right after the import."
            )
        object.__setattr__(self, name, value)
        object.__setattr__(self, "generation", self.generation + 1)

    def read(self, name: str) -> Any:
        """The value of one option; AttributeError when there is no such option."""
        if name not in _OPTIONS:
            raise AttributeError(f"Unrecognized config option: {name!r}. Options: {', '.join(_OPTIONS)}")
        return getattr(self, name)

    @property
    def values(self) -> dict[str, Any]:
        """All options and their values (a copy)."""
        return {name: getattr(self, name) for name in _OPTIONS}

    @contextlib.contextmanager
    def override(self, name: str, value: Any) -> Iterator[None]:
        """Set one option for the length of a `with` block."""
        before = self.read(name)
        self.update(name, value)
        try:
            yield
        finally:
            object.__setattr__(self, name, before)
            object.__setattr__(self, "generation", self.generation + 1)

    def fix_devices(self) -> None:
        """From now on the number of devices cannot change. Called by the part that first lists them."""
        object.__setattr__(self, "_devices_are_known", True)

    def __setattr__(self, name: str, value: Any) -> None:
        self.update(name, value)

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{name}={value!r}' for name, value in self.values.items())})"


config = Config(os.environ)
