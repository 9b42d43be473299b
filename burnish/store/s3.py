"""Objects in a bucket of any S3-compatible service, through the `minio` client.

Retries happen in one place per kind of failure: urllib3 repeats requests (`retries`), `get_range` resumes broken
bodies, `put_file` repeats an upload that came to nothing.
"""

import contextlib
import io
import random
import time
from collections.abc import Iterable, Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from xml.etree.ElementTree import ParseError

import urllib3
from minio import Minio
from minio.deleteobjects import DeleteObject
from minio.error import InvalidResponseError, MinioException, S3Error, ServerError
from urllib3.exceptions import HTTPError

from burnish.contracts.errors import StoreError
from burnish.store.backend import MissingObject, StoredObject
from burnish.store.retries import http_pool, one_line

_PIECE = 1 << 20
_PART = 16 << 20
_PART_UPLOADS = 4
_UPLOADS = 3
"""Attempts at one file."""
_MISSING = {"NoSuchKey", "NoSuchObject", "NotFound"}
_CONFLICT = {"PreconditionFailed", "ConditionalRequestConflict"}
_DENIED = {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "Forbidden", "InvalidAccessKey"}
_SKEWED = "RequestTimeTooSkewed"
# S3 refuses requests that are a quarter of an hour off.
_SKEW_S = 600.0
# Less than this in so many seconds, and a body is taken for stuck: another connection may get another server.
_SLOW_BYTES = 1 << 16
_SLOW_S = 60.0


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
        patience: int = 12,
    ) -> None:
        """`patience`: how often a request is repeated, and a broken body; 12 take about four minutes."""
        self.url = f"s3://{bucket}/{prefix}".rstrip("/")
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._endpoint = endpoint
        self._patience = patience
        scheme, _, host = endpoint.partition("://")

        def client(retries: int, read_s: float) -> Minio:
            return Minio(
                host,
                access_key,
                secret_key,
                session_token=session_token,
                secure=scheme == "https",
                region=region,
                http_client=http_pool(retries, read_s),
            )

        # A store that answered once is worth waiting for; what was waited for in vain is not, until it answers again.
        self._patient, self._hasty = client(patience, 60.0), client(min(patience, 4), 10.0)
        self._client = self._hasty
        with self._explained(""):
            exists = self._client.bucket_exists(bucket)
        if not exists:
            raise StoreError(f"object store {endpoint}: there is no bucket {bucket!r}; create it or fix BURNISH_STORE")

    def put_bytes(self, key: str, data: bytes) -> None:
        with self._explained(key):
            self._client.put_object(self._bucket, self._prefix + key, io.BytesIO(data), len(data))

    def put_new(self, key: str, data: bytes) -> bool:
        with self._explained(key):
            try:
                # The client's public method has no way to ask for it.
                self._client._put_object(self._bucket, self._prefix + key, data, {"If-None-Match": "*"})
            except S3Error as error:
                if error.code not in _CONFLICT:
                    raise
        try:
            # A repeated request meets its own first attempt; and a service may not know the condition.
            return self.get_bytes(key) == data
        except MissingObject:
            # The writer that ours met has not come through.
            return self.put_new(key, data)

    def put_file(self, key: str, path: Path) -> None:
        size = path.stat().st_size
        for _ in range(_UPLOADS):
            stored = False
            with self._explained(key), open(path, "rb") as file:
                try:
                    written = self._client.put_object(
                        self._bucket,
                        self._prefix + key,
                        file,
                        size,
                        # S3 allows 10,000 parts.
                        part_size=max(_PART, -(-size // 10_000)),
                        num_parallel_uploads=_PART_UPLOADS,
                    )
                    stored = written.etag is not None
                except S3Error as error:
                    if error.code != "NoSuchUpload":
                        raise
            # Putting parts together can fail under status 200, and can be done although the answer got lost.
            if stored or self.size(key) == size:
                return
        raise StoreError(f"{self._where(key)}: the store did not put the upload's parts together; check its log")

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
            wanted = length
            try:
                with self._explained(key):
                    response = self._client.get_object(self._bucket, self._prefix + key, offset=start, length=length)
                    with contextlib.closing(response):
                        for piece in self._pieces(response, key):
                            start, length = start + len(piece), length - len(piece)
                            yield piece
                    response.release_conn()
                if length:
                    raise _BrokenBody(f"{self._where(key)}: the object is {length} bytes too short")
            except _BrokenBody:
                failures = self._pause(0 if wanted - length >= _SLOW_BYTES else failures)

    def _pieces(self, response: urllib3.BaseHTTPResponse, key: str) -> Iterator[bytes]:
        """The body as it comes, as long as it comes. Raises _BrokenBody."""
        since, arrived = time.monotonic(), 0
        while piece := response.read1(_PIECE, decode_content=False):
            yield piece
            arrived += len(piece)
            if time.monotonic() - since > _SLOW_S:
                if arrived < _SLOW_BYTES:
                    slow = f"only {arrived} bytes came in {_SLOW_S:.0f} s"
                    raise _BrokenBody(f"{self._where(key)}: {slow}; check the network and the store")
                since, arrived = time.monotonic(), 0

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

    def unfinished(self) -> Iterator[StoredObject]:
        """Uploads in parts, at most 1000 of them; the key holds the id of the upload behind a `#`."""
        with self._explained(""):
            for upload in self._client._list_multipart_uploads(self._bucket, prefix=self._prefix).uploads:
                key = upload.object_name.removeprefix(self._prefix)
                begun = upload.initiated_time.timestamp() if upload.initiated_time else 0.0
                yield StoredObject(f"{key}#{upload.upload_id}", 0, begun)

    def drop_unfinished(self, keys: Iterable[str]) -> None:
        for name in keys:
            key, _, upload_id = name.rpartition("#")
            with self._explained(key), contextlib.suppress(MissingObject):
                self._client._abort_multipart_upload(self._bucket, self._prefix + key, upload_id)

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
            self._client = self._patient
        except S3Error as error:
            self._after(error.response.status)
            if error.code in _MISSING:
                raise MissingObject(f"{where}: there is no such object") from None
            skew_s = _skew_s(error.response)
            if error.code == _SKEWED or (error.code in _DENIED and abs(skew_s) > _SKEW_S):
                raise StoreError(
                    f"{where}: this machine's clock is {abs(skew_s) / 60:.0f} minutes "
                    f"{'ahead of' if skew_s > 0 else 'behind'} the store's; set both by NTP"
                ) from None
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
        except (ServerError, InvalidResponseError, ParseError) as error:
            self._client = self._hasty
            raise StoreError(f"{where}: {one_line(error)}; is BURNISH_S3_ENDPOINT an S3 service?") from None
        except urllib3.exceptions.MaxRetryError as error:
            self._client = self._hasty
            raise StoreError(
                f"{where}: no connection ({one_line(error.reason)}); check BURNISH_S3_ENDPOINT and that the store runs"
            ) from None
        except HTTPError as error:
            raise _BrokenBody(f"{where}: the connection broke ({one_line(error)}); check the store's log") from None
        except MinioException as error:
            raise StoreError(f"{where}: {one_line(error)}") from None

    def _after(self, status: int) -> None:
        self._client = self._hasty if status >= 500 else self._patient


class _BrokenBody(StoreError):
    """The answer began well and broke off."""


def _skew_s(response: urllib3.BaseHTTPResponse) -> float:
    """Seconds by which our clock is ahead of the store's; 0 when it does not say the time."""
    try:
        return time.time() - parsedate_to_datetime(response.headers.get("Date", "")).timestamp()
    except (ValueError, TypeError):
        return 0.0
