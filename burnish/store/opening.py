"""From environment variables to an open store; a missing one is an error that names it and the fix."""

import os
from pathlib import Path
from urllib.parse import urlsplit

from burnish.contracts.errors import StoreError
from burnish.store.artifacts import ArtifactStore
from burnish.store.backend import Backend
from burnish.store.cache import BlobCache


def open_store(url: str | None = None) -> ArtifactStore:
    """The store at `url`, `s3://bucket/prefix` or a folder; None takes BURNISH_STORE.

    S3 also reads BURNISH_S3_ENDPOINT, BURNISH_S3_REGION (us-east-1), AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and
    AWS_SESSION_TOKEN; the cache lies in BURNISH_CACHE (~/.cache/burnish) and keeps to BURNISH_CACHE_GB (20).
    Raises StoreError.
    """
    url = url or _required("BURNISH_STORE", "s3://bucket/prefix or a folder")
    cache = Path(os.environ.get("BURNISH_CACHE") or Path.home() / ".cache" / "burnish")
    return ArtifactStore(_open_backend(url), BlobCache(cache / "blobs", _cache_limit()))


def _cache_limit() -> float:
    text = os.environ.get("BURNISH_CACHE_GB") or "20"
    try:
        limit = float(text)
    except ValueError:
        limit = -1.0
    if not limit >= 0:
        raise StoreError(f"BURNISH_CACHE_GB is {text!r}; set it to a number of gigabytes, 0 or more")
    return limit * 1e9


def _open_backend(url: str) -> Backend:
    if "://" not in url:
        from burnish.store.folder import FolderBackend

        return FolderBackend(Path(url).expanduser())
    parts = urlsplit(url)
    if parts.scheme != "s3" or not parts.netloc:
        raise StoreError(f"store {url!r} is neither s3://bucket/prefix nor a folder; fix BURNISH_STORE")
    endpoint = _required("BURNISH_S3_ENDPOINT", "the service's address, e.g. http://127.0.0.1:8333").rstrip("/")
    address = urlsplit(endpoint)
    if address.scheme not in {"http", "https"} or not address.netloc or address.path or address.username:
        raise StoreError("BURNISH_S3_ENDPOINT is not of the form http://host:port or https://host; fix it")
    # The client costs 0.1 s to import; light stages over a folder do without.
    from burnish.store.s3 import S3Backend

    return S3Backend(
        endpoint,
        parts.netloc,
        parts.path.strip("/"),
        region=os.environ.get("BURNISH_S3_REGION") or "us-east-1",
        access_key=_required("AWS_ACCESS_KEY_ID", "the access key of the bucket"),
        secret_key=_required("AWS_SECRET_ACCESS_KEY", "the secret key of the bucket"),
        session_token=os.environ.get("AWS_SESSION_TOKEN"),
    )


def _required(variable: str, meaning: str) -> str:
    value = os.environ.get(variable)
    if not value:
        raise StoreError(f"{variable} is not set; set it to {meaning}")
    return value
