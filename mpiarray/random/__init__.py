"""`jax.random`: keys and random numbers whose bits are JAX's (threefry-2x32).

Numbers depend on the key and on the global shape only: not on the sharding, the mesh or the number of ranks.  Each rank
makes its own block and nothing is sent (sharded Poisson and binomial draws agree on one number first).

    key = jax.random.key(0)
    key, sub = jax.random.split(key)
    x = jax.random.normal(sub, (8, 4), out_sharding=jax.P('x', 'y'))

`out_sharding` is a spec of the context mesh or a NamedSharding on Explicit axes; without it a draw is replicated, or
placed like its parameters.  Functions take one key; for an array of keys use `jax.vmap`.
"""

from mpiarray.random.arrangement import choice, permutation
from mpiarray.random.continuous import (
    cauchy,
    double_sided_maxwell,
    exponential,
    geometric,
    gumbel,
    laplace,
    logistic,
    lognormal,
    maxwell,
    pareto,
    rayleigh,
    triangular,
    wald,
    weibull_min,
)
from mpiarray.random.discrete import binomial, categorical, multinomial, poisson
from mpiarray.random.gamma_family import ball, beta, chisquare, dirichlet, f, gamma, generalized_normal, loggamma, t
from mpiarray.random.keys import PRNGKey, clone, fold_in, key, key_data, key_dtype, key_impl, split, wrap_key_data
from mpiarray.random.multivariate import multivariate_normal, orthogonal
from mpiarray.random.uniform import bernoulli, bits, normal, rademacher, randint, truncated_normal, uniform
