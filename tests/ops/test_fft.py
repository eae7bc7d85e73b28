"""Fourier transforms on a mesh against numpy on global data, what they move, and their derivatives."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpiarray.config import config
from mpiarray.core.op import Linear
from mpiarray.ops.fft import FftType, fft
from mpiarray.runtime import eager
from mpiarray.types.mesh import AxisType
from tests.ops.pretended_mesh import P, draw_spec, mesh_of, run, size_of

EXPLICIT = mesh_of(("x", 4), ("y", 2))
AUTO = mesh_of(("x", 4), ("y", 2), kind=AxisType.Auto)
NUMPY = {FftType.FFT: np.fft.fftn, FftType.IFFT: np.fft.ifftn, FftType.RFFT: np.fft.rfftn, FftType.IRFFT: np.fft.irfftn}


def values(shape, kind, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape)
    return x.astype(np.float32) if kind == FftType.RFFT else (x + 1j * rng.normal(size=shape)).astype(np.complex64)


@settings(max_examples=100)
@given(st.data())
def test_values_wherever_the_operand_lies(data):
    mesh = data.draw(st.sampled_from((EXPLICIT, AUTO)))
    kind = data.draw(st.sampled_from(list(FftType)))
    ndim = data.draw(st.integers(1, 3))
    count = data.draw(st.integers(1, ndim))
    shape = [data.draw(st.sampled_from((4, 8, 16, 6, 5, 1))) for _ in range(ndim)]
    lengths = list(shape[ndim - count :])
    if kind == FftType.IRFFT:
        lengths[-1] = 2 * (shape[-1] - 1) + data.draw(st.integers(0, 1)) or 1
        shape[-1] = lengths[-1] // 2 + 1
    x = values(shape, kind)
    spec = draw_spec(data, mesh, shape)
    call = lambda a: [fft(a, fft_type=kind, fft_lengths=tuple(lengths))]
    (got,), (aval,), (lies,), _ = run(call, [x], [spec], mesh)
    axes = tuple(range(ndim - count, ndim))
    wanted = NUMPY[kind](x.astype(np.complex128) if kind != FftType.RFFT else x.astype(np.float64), lengths, axes)
    assert got.dtype == (np.float32 if kind == FftType.IRFFT else np.complex64)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4 * max(1, np.abs(wanted).max()))
    kept = [a if n % size_of(mesh, a) == 0 else () for n, a in zip(got.shape, spec.padded(ndim).dims)]
    assert list(lies.dims) == kept
    if mesh is EXPLICIT:
        assert list(aval.dims) == kept


def traffic(shape, spec, kind=FftType.FFT, count=1):
    call = lambda a: [fft(a, fft_type=kind, fft_lengths=tuple(shape[len(shape) - count :]))]
    return dict(run(call, [values(shape, kind)], [spec], EXPLICIT)[3].calls)


def test_a_sharded_dim_is_moved_to_another_and_back():
    assert traffic((8, 8), P("x", None)) == {}
    assert traffic((8, 8), P(None, "x")) == {"all_to_all": 16}
    assert traffic((8, 8), P("x", None), count=2) == {"all_to_all": 16}
    assert traffic((8, 8), P(None, "x"), count=2) == {"all_to_all": 16}
    both = traffic((16, 16), P("x", "y"), count=2)  # y to the first dim, all to the second, and boxes back
    assert both["all_to_all"] == 16 and "all_gather" not in both


def test_it_is_gathered_only_if_no_dim_takes_it():
    assert traffic((3, 8), P(None, "x")) == {"all_gather": 8}
    assert traffic((8,), P("x")) == {"all_gather": 8}


def test_errors_name_the_type():
    with pytest.raises(TypeError, match=r"RFFT requires float32 or float64 inputs, got complex64\[4\]"):
        fft(np.ones(4, np.complex64), fft_type=FftType.RFFT, fft_lengths=(4,))
    with pytest.raises(TypeError, match=r"FFT requires complex64 or complex128 inputs, got float32\[4\]"):
        fft(np.ones(4, np.float32), fft_type=FftType.FFT, fft_lengths=(4,))
    with pytest.raises(ValueError, match=r"requires the last dimensions of its input to be \(3,\)"):
        fft(np.ones(4, np.complex64), fft_type=FftType.IRFFT, fft_lengths=(4,))


@pytest.mark.parametrize("kind", list(FftType))
@pytest.mark.parametrize("lengths", [(6,), (5,), (4, 6), (3, 5), (1,)])
def test_transposes_are_adjoint(kind, lengths):
    """Of maps of real spaces: the inner product is the real part of the sum of products."""
    before = config.jax_enable_x64
    config.update("jax_enable_x64", True)
    try:
        shape = (2, *lengths[:-1], lengths[-1] // 2 + 1 if kind == FftType.IRFFT else lengths[-1])
        x = values(shape, kind).astype(np.float64 if kind == FftType.RFFT else np.complex128)
        out = np.asarray(fft(x, fft_type=kind, fft_lengths=lengths))
        ct = values(out.shape, FftType.RFFT if kind == FftType.IRFFT else FftType.FFT, 1).astype(out.dtype)
        (back,) = fft.transpose(fft, ct, Linear(eager.from_host(x).aval), fft_type=kind, fft_lengths=lengths)
        back = np.asarray(back)
    finally:
        config.update("jax_enable_x64", before)
    assert back.shape == x.shape and back.dtype == x.dtype
    np.testing.assert_allclose(np.sum(ct * out).real, np.sum(back * x).real, rtol=1e-6)
