"""Pure data that the whole package speaks in: dtypes, meshes, specs, shardings, array types, layouts, pytrees.

Nothing here communicates, holds array data or knows which rank it is on. These objects are immutable,
and those that key caches are interned: equal means identical, so comparing and hashing them is free.
"""
