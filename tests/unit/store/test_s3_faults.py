"""What the network and the service can do to us: broken answers are repeated, refusals are not, errors are one line."""

import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from faulty_proxy import faulty_proxy
from watched_backend import files_under

from burnish.contracts.errors import StoreError
from burnish.store.artifacts import ArtifactStore
from burnish.store.backend import MissingObject
from burnish.store.cache import BlobCache


@pytest.fixture
def through_proxy(seaweed, s3, tmp_path):
    """A store that talks through the faulty proxy, and the faults."""
    with faulty_proxy(seaweed["BURNISH_S3_ENDPOINT"]) as (endpoint, faults):
        yield ArtifactStore(s3(endpoint=endpoint), BlobCache(tmp_path / "cache")), faults


def test_a_truncated_download_goes_on_where_it_broke(through_proxy, another_node, put, tmp_path) -> None:
    store, faults = through_proxy
    data = os.urandom(5 << 20)
    manifest = put(store, {"a": data})
    faults.truncate = [1 << 20, 3 << 20]
    node = another_node(store)
    faults.requests.clear()
    node.fetch(manifest, tmp_path / "in")
    assert files_under(tmp_path / "in") == {"a": data}
    assert faults.truncate == []
    assert len(faults.requests) == 3


def test_a_download_that_always_breaks_is_one_line_in_the_end(seaweed, s3, another_node, put, tmp_path) -> None:
    with faulty_proxy(seaweed["BURNISH_S3_ENDPOINT"]) as (endpoint, faults):
        store = ArtifactStore(s3(endpoint=endpoint, patience=2), BlobCache(tmp_path / "cache"))
        manifest = put(store, {"a": os.urandom(1000)})
        faults.truncate = [0] * 20
        node = another_node(store)
        with pytest.raises(StoreError, match=r"key test-\d+/blobs/sha256/.*the connection broke") as error:
            node.fetch(manifest, tmp_path / "in")
    assert "\n" not in str(error.value)
    assert files_under(node.cache.root) == {}


def test_a_truncated_manifest_is_read_again(through_proxy, put) -> None:
    store, faults = through_proxy
    manifest = put(store, {"a": b"bytes"})
    faults.truncate = [10, 20]
    assert store.get_manifest(manifest.digest) == manifest
    assert faults.truncate == []


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_server_errors_are_repeated(through_proxy, another_node, put, tmp_path, status: int) -> None:
    store, faults = through_proxy
    faults.statuses = [status]
    manifest = put(store, {"a": b"bytes"})
    faults.statuses = [status, status]
    another_node(store).fetch(manifest, tmp_path / "in")
    assert files_under(tmp_path / "in") == {"a": b"bytes"}
    assert faults.statuses == []


def test_server_errors_in_the_middle_of_a_multipart_upload_are_repeated(through_proxy, another_node, put, tmp_path):
    store, faults = through_proxy
    data = os.urandom(40 << 20)
    faults.statuses = [500, 503]
    manifest = put(store, {"a": data})
    posts = [path for method, path in faults.requests if method == "POST"]
    assert any("uploads" in path for path in posts)
    another_node(store).fetch(manifest, tmp_path / "in")
    assert files_under(tmp_path / "in") == {"a": data}


def test_server_errors_without_end_are_one_line(seaweed, s3) -> None:
    with faulty_proxy(seaweed["BURNISH_S3_ENDPOINT"]) as (endpoint, faults):
        backend = s3(endpoint=endpoint, patience=1)
        faults.statuses = [500] * 10
        with pytest.raises(StoreError, match=r"key test-\d+/x: .*500") as error:
            backend.get_bytes("x")
    assert "\n" not in str(error.value)


def test_what_is_not_there_is_asked_for_once(through_proxy) -> None:
    store, faults = through_proxy
    faults.requests.clear()
    with pytest.raises(MissingObject):
        store.backend.get_bytes("nothing")
    assert len(faults.requests) == 1


def test_a_refusal_is_not_repeated_and_names_the_variables(seaweed, s3) -> None:
    with faulty_proxy(seaweed["BURNISH_S3_ENDPOINT"]) as (endpoint, faults):
        for wrong in ({"secret_key": "wrong"}, {"access_key": "wrong"}):
            faults.requests.clear()
            with pytest.raises(StoreError, match=r"access denied.*AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY"):
                s3(endpoint=endpoint, **wrong)
            assert len(faults.requests) == 1


def test_an_error_never_holds_the_secret(seaweed, s3) -> None:
    with pytest.raises(StoreError) as error:
        s3(bucket="nothing-here")
    assert seaweed["AWS_SECRET_ACCESS_KEY"] not in str(error.value)
    assert "there is no bucket 'nothing-here'" in str(error.value)


def test_no_object_store_is_one_line_within_seconds(s3) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{held.getsockname()[1]}"
        started = time.monotonic()
        with pytest.raises(StoreError, match=r"no connection .*check BURNISH_S3_ENDPOINT") as error:
            s3(endpoint=endpoint)
    assert time.monotonic() - started < 10
    assert endpoint in str(error.value)
    assert "\n" not in str(error.value)


def test_an_address_that_is_no_s3_service_is_one_line(s3) -> None:
    from http.server import BaseHTTPRequestHandler, HTTPServer
    from threading import Thread

    class Teapot(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(418)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Teapot) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(StoreError, match="is BURNISH_S3_ENDPOINT an S3 service") as error:
            s3(endpoint=f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
    assert "\n" not in str(error.value)


def test_keys_are_listed_as_they_were_put(s3) -> None:
    backend = s3()
    backend.put_bytes("results/a.json", b"12")
    backend.put_bytes("results/b/c.json", b"3")
    assert {stored.key: stored.size for stored in backend.list("results/")} == {
        "results/a.json": 2,
        "results/b/c.json": 1,
    }
    assert all(abs(stored.modified - time.time()) < 60 for stored in backend.list("results/"))
    backend.delete(["results/a.json", "results/never-there.json"])
    assert [stored.key for stored in backend.list("results/")] == ["results/b/c.json"]


def test_more_than_a_page_of_keys_is_listed_and_deleted(s3) -> None:
    backend = s3()
    keys = [f"results/{number:04}" for number in range(1005)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: backend.put_bytes(key, b""), keys))
    assert [stored.key for stored in backend.list("")] == keys
    backend.delete(keys)
    assert list(backend.list("")) == []
