"""From a global jaxpr to steps on blocks: a tuple of small passes with a checked program between them."""
