"""Modules from outside Python's library that programs find imported already, numpy for one.

Only what they brought with them can be read: not their neighbours, which may hold the answers to the tasks.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Sequence

# Threads do not survive the forks.
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}


def folders_of(names: Sequence[str]) -> list[str]:
    """The folders to import `names` from. Raises ModuleNotFoundError."""
    found = []
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(f"preload: no module {name!r} is installed")
        package = os.path.dirname(spec.origin)
        found.append(os.path.dirname(package) if spec.submodule_search_locations else package)
    return list(dict.fromkeys(found))


def import_all(names: Iterable[str], folders: Sequence[str]) -> list[str]:
    """Import `names` from `folders`; returns the files and folders of all that came with them."""
    sys.path += folders
    for name in names:
        importlib.import_module(name)
    found: dict[str, None] = {}
    for module in list(sys.modules.values()):
        origin = getattr(module, "__file__", None) or ""
        for folder in folders:
            if origin.startswith(folder + os.sep):
                top = os.path.join(folder, origin[len(folder) + 1 :].split(os.sep)[0])
                found |= dict.fromkeys([top, f"{top}.libs"])
    return list(found)
