"""Records values of special functions from JAX.

    python record_special.py > recorded_special.json

Run with a Python that has JAX 0.10.  The calls are in special_calls.py, which the test reads too.
"""

import json
import math
import sys
from pathlib import Path

import jax.scipy.special
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from special_calls import CALLS

rows = {}
for key, (name, args, kwargs) in CALLS.items():
    out = np.asarray(getattr(jax.scipy.special, name)(*args, **kwargs))
    rows[key] = [list(out.shape), [float(v) if math.isfinite(v) else str(v) for v in out.ravel()]]
json.dump(rows, sys.stdout, indent=0)
