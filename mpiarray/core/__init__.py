"""The core language: op records, values, traces, jaxprs and the rules that type them."""
