"""Removing a folder that hostile code filled: any depth, any names, any modes, any links.

Nothing may be running in it any more; then nothing can change between a look and a step.
"""

import os

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove(path: str) -> None:
    """Remove the folder `path` and all below it; links are removed, never followed. Fine when it is gone already."""
    try:
        top = _open(path)
    except FileNotFoundError:
        return
    _empty(top)
    os.rmdir(path)


def _empty(here: int) -> None:
    """Remove all below a folder and close it; one descriptor and no path, however deep it goes."""
    above: list[tuple[str, list[str]]] = []  # what a folder is called, and its brothers that are still there
    folders = _folders_after_unlinking(here)
    while folders or above:
        if folders:
            name = folders.pop()
            following = _open(name, here)
            above.append((name, folders))
            folders = _folders_after_unlinking(following)
        else:
            name, folders = above.pop()
            following = os.open("..", FOLDER, dir_fd=here)
            os.rmdir(name, dir_fd=following)
        os.close(here)
        here = following
    os.close(here)


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
