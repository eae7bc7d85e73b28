"""Functions of functions: jit and its stages, auto_axes and explicit_axes."""
