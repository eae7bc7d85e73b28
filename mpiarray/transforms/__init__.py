"""One interpreter a file: staging to jaxprs, derivatives, partial evaluation, transposition, batching."""
