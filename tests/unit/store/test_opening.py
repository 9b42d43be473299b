"""From the environment to a store: every missing or wrong variable is named with its fix."""

import subprocess
import sys

import pytest

from burnish.contracts.errors import StoreError
from burnish.store import open_store
from burnish.store.folder import FolderBackend
from burnish.store.s3 import S3Backend

VARIABLES = (
    "BURNISH_STORE",
    "BURNISH_CACHE",
    "BURNISH_CACHE_GB",
    "BURNISH_S3_ENDPOINT",
    "BURNISH_S3_REGION",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
)


@pytest.fixture(autouse=True)
def _empty_environment(monkeypatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_the_environment_of_the_embedded_store_is_all_a_stage_needs(seaweed, monkeypatch, tmp_path) -> None:
    for name, value in seaweed.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path))
    store = open_store()
    assert isinstance(store.backend, S3Backend)
    assert store.cache.root == tmp_path / "blobs"


def test_a_path_is_a_folder(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("BURNISH_STORE", str(tmp_path / "bucket"))
    assert isinstance(open_store().backend, FolderBackend)
    assert open_store(str(tmp_path / "other")).backend.url == str(tmp_path / "other")


def test_the_prefix_of_the_url_is_part_of_every_key(seaweed, monkeypatch) -> None:
    for name, value in seaweed.items():
        monkeypatch.setenv(name, value)
    open_store("s3://burnish/opening/a/").backend.put_bytes("results/x", b"1")
    assert [found.key for found in open_store("s3://burnish/opening").backend.list("")] == ["a/results/x"]


def test_each_missing_variable_is_named(monkeypatch) -> None:
    given = {
        "BURNISH_STORE": "s3://bucket",
        "BURNISH_S3_ENDPOINT": "http://127.0.0.1:1",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }
    for name, value in given.items():
        with pytest.raises(StoreError, match=f"^{name} is not set; set it to "):
            open_store()
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("url", ["gs://bucket", "s3://", "http://host/bucket"])
def test_a_url_that_is_neither_is_refused(url: str) -> None:
    with pytest.raises(StoreError, match="neither s3://bucket/prefix nor a folder"):
        open_store(url)


@pytest.mark.parametrize("endpoint", ["127.0.0.1:8333", "http://host/path", "ftp://host", "http://me:secret@host"])
def test_an_endpoint_that_is_none_is_refused_without_showing_it(endpoint: str, monkeypatch) -> None:
    monkeypatch.setenv("BURNISH_S3_ENDPOINT", endpoint)
    with pytest.raises(StoreError, match="BURNISH_S3_ENDPOINT is not of the form") as error:
        open_store("s3://bucket")
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("limit", ["much", "-1", "nan"])
def test_a_cache_limit_that_is_none_is_refused(limit: str, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("BURNISH_CACHE_GB", limit)
    with pytest.raises(StoreError, match=f"BURNISH_CACHE_GB is '{limit}'"):
        open_store(str(tmp_path))


def test_a_folder_store_is_opened_without_the_s3_client(tmp_path) -> None:
    script = f"import sys, burnish.store as s; s.open_store({str(tmp_path)!r}); sys.exit('minio' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
