"""Settings of the whole test tree."""

from hypothesis import settings

# The first example of a property pays for imports and warm-up; a time limit per example would make it flaky.
settings.register_profile("burnish", deadline=None)
settings.load_profile("burnish")
