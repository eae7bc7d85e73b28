"""`jax.experimental`: layouts and what all processes do together."""
