"""Settings: start values from the environment, updates, refusals. And that the drawn tree of errors is the real one."""

import inspect
import re

import pytest

from mpiarray import errors
from mpiarray.config import Config


def test_defaults():
    c = Config({})
    assert c.jax_enable_x64 is False and c.check is False and c.timeout is None and c.deterministic is False
    assert c.abort is True and c.gather_warn_bytes == 268435456 and c.exchange_bytes == 64 * 2**20
    assert c.jax_num_cpu_devices == -1 and c.jax_platforms == "cpu"


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("MPIARRAY_CHECK", "1", "check", True),
        ("MPIARRAY_CHECK", "0", "check", False),
        ("MPIARRAY_CHECK", "", "check", False),
        ("MPIARRAY_TIMEOUT", "2.5", "timeout", 2.5),
        ("MPIARRAY_TIMEOUT", "", "timeout", None),
        ("MPIARRAY_TIMEOUT", "none", "timeout", None),
        ("MPIARRAY_DETERMINISTIC", "true", "deterministic", True),
        ("MPIARRAY_ABORT", "0", "abort", False),
        ("MPIARRAY_GATHER_WARN_BYTES", "0", "gather_warn_bytes", 0),
        ("MPIARRAY_EXCHANGE_BYTES", "4096", "exchange_bytes", 4096),
        ("MPIARRAY_LLVM", "auto", "llvm", "auto"),
        ("MPIARRAY_LLVM", "1", "llvm", True),
        ("MPIARRAY_LLVM", "off", "llvm", False),
        ("MPIARRAY_MACHINE_FILE", "", "machine_file", None),
        ("MPIARRAY_MACHINE_FILE", "/a/b.json", "machine_file", "/a/b.json"),
        ("JAX_ENABLE_X64", "True", "jax_enable_x64", True),
        ("JAX_NUM_CPU_DEVICES", "8", "jax_num_cpu_devices", 8),
    ],
)
def test_environment(variable, text, name, value):
    assert getattr(Config({variable: text}), name) == value


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("MPIARRAY_CHECK", "maybe"),
        ("MPIARRAY_TIMEOUT", "-1"),
        ("MPIARRAY_TIMEOUT", "soon"),
        ("MPIARRAY_TIMEOUT", "nan"),
        ("MPIARRAY_EXCHANGE_BYTES", "0"),
        ("MPIARRAY_LLVM", "some"),
        ("MPIARRAY_GATHER_WARN_BYTES", "1.5"),
        ("JAX_PLATFORMS", "gpu"),
    ],
)
def test_a_bad_variable_is_named(variable, text):
    with pytest.raises(ValueError, match=f"environment variable {variable}='{re.escape(text)}'"):
        Config({variable: text})


def test_update_and_read():
    c = Config({})
    c.update("jax_enable_x64", True)
    assert c.jax_enable_x64 is True and c.read("jax_enable_x64") is True and c.values["jax_enable_x64"] is True
    c.check = True
    assert c.check is True
    c.update("timeout", 3)
    assert c.timeout == 3.0
    c.update("jax_platforms", "cpu")
    assert "timeout=3.0" in repr(c)


def test_override_is_undone_also_after_an_error():
    c = Config({})
    with pytest.raises(KeyError), c.override("jax_enable_x64", True):
        assert c.jax_enable_x64
        raise KeyError
    assert not c.jax_enable_x64


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("jax_enable_x64", "yes", TypeError),
        ("check", 2, TypeError),
        ("timeout", 0, ValueError),
        ("timeout", "3", TypeError),
        ("exchange_bytes", 0, ValueError),
        ("exchange_bytes", True, TypeError),
        ("llvm", "on", ValueError),
        ("machine_file", 3, TypeError),
        ("jax_num_cpu_devices", 0, ValueError),
        ("jax_threefry_partitionable", False, ValueError),
        ("jax_numpy_dtype_promotion", "strict", ValueError),
    ],
)
def test_bad_values(name, value, error):
    c = Config({})
    before = c.values
    with pytest.raises(error, match=name):
        c.update(name, value)
    assert c.values == before


def test_unknown_options():
    c = Config({})
    for use in (lambda: c.update("jax_no_such", 1), lambda: c.read("jax_no_such"), lambda: setattr(c, "chekc", True)):
        with pytest.raises(AttributeError, match="Unrecognized config option"):
            use()
    with pytest.raises(AttributeError):
        _ = c.jax_no_such


def test_the_number_of_devices_is_fixed_by_its_first_use():
    c = Config({})
    c.update("jax_num_cpu_devices", 4)
    c.fix_devices()
    c.update("jax_num_cpu_devices", 4)
    with pytest.raises(RuntimeError, match="should be updated before backends are initialized"):
        c.update("jax_num_cpu_devices", 8)
    assert c.jax_num_cpu_devices == 4
    c.update("check", True)


def test_every_option_is_documented():
    text = inspect.getmodule(Config).__doc__
    for name in Config({}).values:
        assert re.search(rf"^    {name} ", text, re.MULTILINE), name


def test_the_tree_of_errors_is_as_drawn():
    classes = {name: c for name, c in inspect.getmembers(errors, inspect.isclass) if c.__module__ == errors.__name__}
    assert set(errors.__all__) == set(classes)
    path, drawn = [], {}
    for line in errors.__doc__.split("\n"):
        found = re.match(r"    ([ │├└─]*)(\w+)", line)
        if found:
            depth = len(found[1]) // 4
            path[depth:] = [found[2]]
            drawn[found[2]] = path[depth - 1] if depth else None
    for name, c in classes.items():
        assert drawn[name] == c.__bases__[0].__name__, name
    assert set(drawn) - set(classes) == {"Exception", "ValueError", "TypeError", "IndexError", "RuntimeError"}
