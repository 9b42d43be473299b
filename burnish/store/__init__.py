"""Content-addressed artifacts over S3 or a folder: bytes live once under their digest, manifests name them."""

from burnish.store.artifacts import ArtifactStore
from burnish.store.opening import open_store

__all__ = ["ArtifactStore", "open_store"]
