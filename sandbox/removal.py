"""Removing a folder that hostile code filled: any depth, any names, any modes, any links.

Nothing may be running in it any more; then nothing can change between a look and a step.
"""

import itertools
import os

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove(path: str) -> None:
    """Remove the folder `path` and all below it, whatever its depth and modes; links are removed, never followed."""
    try:
        top = _open(path)
    except FileNotFoundError:
        return
    try:
        _empty(top)
    finally:
        os.close(top)
    os.rmdir(path)


def _empty(top: int) -> None:
    """Remove all below `top`, moving what lies deeper up first, so that no path is ever long."""
    mark, numbers = os.urandom(8).hex(), itertools.count()
    while folders := _folders_after_unlinking(top):
        for name in folders:
            folder = _open(name, top)
            try:
                for inner in _folders_after_unlinking(folder):
                    # Moving a folder changes its "..", so it must be writable itself.
                    os.close(_open(inner, folder))
                    os.rename(inner, f"{mark}-{next(numbers)}", src_dir_fd=folder, dst_dir_fd=top)
            finally:
                os.close(folder)
            os.rmdir(name, dir_fd=top)


def _folders_after_unlinking(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        if not is_folder:
            os.unlink(name, dir_fd=folder)
    return [name for name, is_folder in found if is_folder]


def _open(folder: str, within: int | None = None) -> int:
    """A descriptor of a folder that can be listed and changed from now on."""
    try:
        descriptor = os.open(folder, FOLDER, dir_fd=within)
    except PermissionError:
        # Ours, or we could not be here; nothing runs that could put a link in its place.
        os.chmod(folder, 0o700, dir_fd=within)
        descriptor = os.open(folder, FOLDER, dir_fd=within)
    os.fchmod(descriptor, 0o700)
    return descriptor
