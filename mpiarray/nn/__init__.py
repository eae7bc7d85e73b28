"""`jax.nn`: activations, softmax and its kin, encodings, initial weights."""

# ruff: noqa: F403

from mpiarray.nn import initializers
from mpiarray.nn.activations import *
from mpiarray.nn.normalizations import *
