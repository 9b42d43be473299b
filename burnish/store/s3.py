"""Objects in a bucket of any S3-compatible service, through the `minio` client.

Retries happen in one place per kind of failure: urllib3 repeats requests, `get_range` resumes broken bodies.
"""

import contextlib
import io
import logging
import os
import random
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import certifi
import urllib3
from minio import Minio
from minio.deleteobjects import DeleteObject
from minio.error import InvalidResponseError, MinioException, S3Error, ServerError
from urllib3.exceptions import HTTPError
from urllib3.util import Retry, Timeout

from burnish.contracts.errors import StoreError
from burnish.store.backend import MissingObject, StoredObject

_PIECE = 1 << 20
_PART = 16 << 20
_PART_UPLOADS = 4
_MISSING = {"NoSuchKey", "NoSuchObject", "NotFound"}
_DENIED = {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "Forbidden", "InvalidAccessKey"}

# Each retried connection would print a line of its own; the one error at the end says it all.
logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)


class S3Backend:
    """Backend over `bucket` and `prefix` (empty, or without slashes at the ends) at `endpoint` (http[s]://host:port).

    Opening asks the service once, so that a wrong address or key is known at once and not after an hour of work.
    """

    def __init__(
        self,
        endpoint: str,
        bucket: str,
        prefix: str,
        *,
        region: str,
        access_key: str,
        secret_key: str,
        session_token: str | None = None,
        patience: int = 8,
    ) -> None:
        self.url = f"s3://{bucket}/{prefix}".rstrip("/")
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._endpoint = endpoint
        self._patience = patience
        scheme, _, host = endpoint.partition("://")

        def client(retries: int) -> Minio:
            return Minio(
                host,
                access_key,
                secret_key,
                session_token=session_token,
                secure=scheme == "https",
                region=region,
                http_client=_http(retries),
            )

        with self._explained(""):
            exists = client(min(patience, 4)).bucket_exists(bucket)
        if not exists:
            raise StoreError(f"object store {endpoint}: there is no bucket {bucket!r}; create it or fix BURNISH_STORE")
        # The store answered once: from here on an outage is worth waiting for, almost a minute.
        self._client = client(patience)

    def put_bytes(self, key: str, data: bytes) -> None:
        with self._explained(key):
            self._client.put_object(self._bucket, self._prefix + key, io.BytesIO(data), len(data))

    def put_file(self, key: str, path: Path) -> None:
        size = path.stat().st_size
        with self._explained(key), open(path, "rb") as file:
            self._client.put_object(
                self._bucket,
                self._prefix + key,
                file,
                size,
                # S3 allows 10,000 parts.
                part_size=max(_PART, -(-size // 10_000)),
                num_parallel_uploads=_PART_UPLOADS,
            )

    def get_bytes(self, key: str) -> bytes:
        failures = 0
        while True:
            try:
                with self._explained(key):
                    response = self._client.get_object(self._bucket, self._prefix + key)
                    with contextlib.closing(response):
                        data: bytes = response.read()
                    response.release_conn()
                    return data
            except _BrokenBody:
                failures = self._pause(failures)

    def get_range(self, key: str, start: int, length: int) -> Iterator[bytes]:
        failures = 0
        while length:
            try:
                with self._explained(key):
                    response = self._client.get_object(self._bucket, self._prefix + key, offset=start, length=length)
                    with contextlib.closing(response):
                        for piece in response.stream(_PIECE, decode_content=False):
                            start, length = start + len(piece), length - len(piece)
                            failures = 0
                            yield piece
                    response.release_conn()
                if length:
                    raise _BrokenBody(f"{self._where(key)}: the object is {length} bytes too short")
            except _BrokenBody:
                failures = self._pause(failures)

    def size(self, key: str) -> int | None:
        try:
            with self._explained(key):
                return self._client.stat_object(self._bucket, self._prefix + key).size
        except MissingObject:
            return None

    def list(self, prefix: str) -> Iterator[StoredObject]:
        with self._explained(prefix):
            for found in self._client.list_objects(self._bucket, self._prefix + prefix, recursive=True):
                if not found.is_dir:
                    key = str(found.object_name).removeprefix(self._prefix)
                    modified = found.last_modified.timestamp() if found.last_modified else 0.0
                    yield StoredObject(key, found.size or 0, modified)

    def delete(self, keys: Iterable[str]) -> None:
        with self._explained(""):
            doomed = (DeleteObject(self._prefix + key) for key in keys)
            for error in self._client.remove_objects(self._bucket, doomed):
                raise StoreError(f"{self._where(str(error.name))}: cannot be deleted: {error.message}")

    def _pause(self, failures: int) -> int:
        """Wait before another attempt and count it; out of patience, let the exception at hand go on."""
        if failures == self._patience:
            raise
        time.sleep(min(10.0, 0.1 * 2**failures) * random.uniform(0.5, 1.0))
        return failures + 1

    def _where(self, key: str) -> str:
        place = f"object store {self._endpoint}, bucket {self._bucket}"
        return f"{place}, key {self._prefix}{key}" if key else place

    @contextlib.contextmanager
    def _explained(self, key: str) -> Iterator[None]:
        """Turn the client's exceptions into one line that says where and what to check."""
        where = self._where(key)
        try:
            yield
        except S3Error as error:
            if error.code in _MISSING:
                raise MissingObject(f"{where}: there is no such object") from None
            if error.code in _DENIED:
                raise StoreError(
                    f"{where}: access denied ({error.code}); check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY "
                    "and what that key may do with the bucket"
                ) from None
            if error.code == "NoSuchBucket":
                raise StoreError(f"{where}: there is no such bucket; create it or fix BURNISH_STORE") from None
            raise StoreError(
                f"{where}: the store answered {error.code} ({error.message}); check its log and its disk"
            ) from None
        except (ServerError, InvalidResponseError) as error:
            raise StoreError(f"{where}: {_one_line(error)}; is BURNISH_S3_ENDPOINT an S3 service?") from None
        except urllib3.exceptions.MaxRetryError as error:
            raise StoreError(
                f"{where}: no connection ({_one_line(error.reason)}); check BURNISH_S3_ENDPOINT and that the store runs"
            ) from None
        except HTTPError as error:
            raise _BrokenBody(f"{where}: the connection broke ({_one_line(error)}); check the store's log") from None
        except MinioException as error:
            raise StoreError(f"{where}: {_one_line(error)}") from None


class _BrokenBody(StoreError):
    """The answer began well and broke off."""


def _http(retries: int) -> urllib3.PoolManager:
    """Repeats a request 0, 0.3, 0.6, ... up to 20 s apart with jitter, whatever its method: all of ours may be."""
    return urllib3.PoolManager(
        timeout=Timeout(connect=5, read=60),
        maxsize=32,
        ca_certs=os.environ.get("SSL_CERT_FILE") or certifi.where(),
        retries=Retry(
            total=retries,
            allowed_methods=None,
            status_forcelist=[500, 502, 503, 504],
            backoff_factor=0.15,
            backoff_jitter=0.2,
            backoff_max=20,
            raise_on_status=False,
        ),
    )


def _one_line(error: BaseException | None) -> str:
    # urllib3 puts the address in front, which the caller has said already.
    return re.sub(r"^HTTPS?Connection\(.*?\): ", "", " ".join(str(error).split()))[:200]
