"""Puts a file of two parts into the store, in a process that may be killed."""

import os
from pathlib import Path

from burnish.store import open_store, s3

KEY = "blobs/sha256/" + "a" * 64
PART = 5 << 20
"""The least that S3 takes."""


def upload(environment: dict[str, str], path: Path) -> None:
    os.environ.update(environment)
    s3._PART = PART
    open_store().backend.put_file(KEY, path)
