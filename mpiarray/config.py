"""Settings."""


class Config:
    """The settings of the package."""

    jax_enable_x64 = False


config = Config()
