"""Attacks on the sandbox as data, one family a file; `sandbox.check` lets them loose.

Each says what it would look like if it worked and which layer is to stop it.
"""

from sandbox.attacks import (
    disguise,
    forging,
    kernel,
    languages,
    processes,
    reading,
    resources,
    sockets,
    tampering,
    testing,
    writing,
)
from sandbox.attacks.attack import Family

FAMILIES: tuple[Family, ...] = (
    reading.FAMILY,
    writing.FAMILY,
    sockets.FAMILY,
    processes.FAMILY,
    kernel.FAMILY,
    resources.FAMILY,
    forging.FAMILY,
    disguise.FAMILY,
    tampering.FAMILY,
    testing.FAMILY,
    languages.FAMILY,
)
