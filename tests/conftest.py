"""Settings of the whole test tree."""

import os

from hypothesis import settings

# Workers share few cores; without this each takes all of them and OpenMP's waiting threads starve the others.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The first example of a property pays for imports and warm-up; a time limit per example would make it flaky.
settings.register_profile("burnish", deadline=None)
settings.load_profile("burnish")
