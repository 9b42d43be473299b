"""`burnish store ls|verify|gc` as people use it."""

import argparse
import json
import os
import sys

import pytest

from burnish.cli.store import add_parser
from burnish.contracts.artifacts import StageRecord
from burnish.contracts.errors import BurnishError
from burnish.store import open_store
from burnish.store.artifacts import blob_key, manifest_key


@pytest.fixture
def filled(tmp_path, monkeypatch, put):
    """A configured store with one run of two stages, one of them failed, and an orphan."""
    monkeypatch.setenv("BURNISH_STORE", str(tmp_path / "bucket"))
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    store = open_store()
    policy = put(store, {"w": b"weights", "t": b"tokenizer"})
    put(store, {"w": b"orphan"})
    done = StageRecord(run_id="my-run", stage="sft", key="a" * 64, outputs={"policy": policy.digest}, started_at=1e9)
    store.put_result(done)
    store.put_run_record(done)
    store.put_run_record(
        StageRecord(run_id="my-run", stage="update", round=1, key="b" * 64, error="boom", started_at=2e9)
    )
    return store, policy


def burnish(*arguments: str) -> int:
    """Exit status of `burnish store ...`."""
    parser = argparse.ArgumentParser(prog="burnish")
    add_parser(parser.add_subparsers(required=True))
    try:
        given = parser.parse_args(["store", *arguments])
        return given.handler(given)
    except BurnishError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except SystemExit as ended:
        return int(ended.code or 0)


def test_ls_shows_runs_with_their_sizes(filled, capsys) -> None:
    assert burnish("ls") == 0
    text = capsys.readouterr().out
    assert "my-run" in text
    assert "round 1 - update" in text
    assert "16 bytes" in text
    assert "1 runs; 3 blobs, 22 bytes stored" in text


def test_ls_of_a_run_shows_its_artifacts(filled, capsys) -> None:
    _, policy = filled
    assert burnish("ls", "my-run", "--json") == 0
    [line] = json.loads(capsys.readouterr().out)
    assert line == {
        "stage": "sft",
        "output": "policy",
        "digest": policy.digest,
        "kind": "policy",
        "files": 2,
        "size": 16,
        "counts": {"rows": 3},
    }
    assert burnish("ls", "my-run") == 0
    assert policy.digest[:12] in capsys.readouterr().out


def test_ls_as_json_holds_every_run(filled, capsys) -> None:
    assert burnish("ls", "--json") == 0
    totals = json.loads(capsys.readouterr().out)
    assert [(run["run_id"], run["stages"], run["failed"], run["size"]) for run in totals["runs"]] == [
        ("my-run", 2, ["round 1 - update"], 16)
    ]
    assert (totals["blobs"], totals["size"]) == (3, 22)


def test_an_unknown_run_is_one_line_and_status_4(filled, capsys) -> None:
    for verb in ("ls", "verify"):
        assert burnish(verb, "nothing") == 4
        assert "there is no run 'nothing'" in capsys.readouterr().err


def test_verify_of_a_sound_store_is_status_0(filled, capsys) -> None:
    assert burnish("verify") == 0
    assert "3 objects, 22 bytes" in capsys.readouterr().out
    assert burnish("verify", "my-run") == 0
    assert "2 objects, 16 bytes" in capsys.readouterr().out


def test_verify_names_what_is_corrupt_or_missing_and_is_status_4(filled, capsys) -> None:
    store, policy = filled
    corrupt, missing = (blob_key(blob.sha256) for blob in policy.blobs)
    store.backend.put_bytes(corrupt, b"tampered!")
    store.backend.delete([missing])
    assert burnish("verify") == 4
    text = " ".join(capsys.readouterr().out.split())
    assert f"{corrupt}: corrupt, of policy artifact {policy.digest[:12]}" in text
    assert f"{missing}: missing, of policy artifact {policy.digest[:12]}" in text
    assert "output 'policy' of 'sft' in run my-run" in text
    assert "2 at fault" in text
    assert burnish("verify", "my-run", "--json") == 4
    assert [fault["key"] for fault in json.loads(capsys.readouterr().out)["faults"]] == [corrupt, missing]


def test_verify_deletes_what_is_corrupt_so_that_it_can_be_made_again(filled, capsys) -> None:
    store, policy = filled
    corrupt = blob_key(policy.blobs[0].sha256)
    sound = corrupt_size = policy.blobs[0].size
    store.backend.put_bytes(corrupt, b"x" * corrupt_size)
    assert store.backend.size(corrupt) == sound, "of the same size, so that only hashing can tell"
    assert burnish("verify") == 4
    assert "burnish store verify --delete" in " ".join(capsys.readouterr().out.split())
    assert store.backend.size(corrupt) is not None
    assert burnish("verify", "--delete") == 4
    assert "1 deleted" in " ".join(capsys.readouterr().out.split())
    assert store.backend.size(corrupt) is None


def test_verify_names_manifests_that_are_corrupt_or_missing(filled, capsys) -> None:
    store, policy = filled
    store.backend.put_bytes(manifest_key(policy.digest), b"{}")
    assert burnish("verify", "my-run") == 4
    assert f"{manifest_key(policy.digest)}: corrupt" in " ".join(capsys.readouterr().out.split())
    store.backend.delete([manifest_key(policy.digest)])
    assert burnish("verify") == 4
    assert f"{manifest_key(policy.digest)}: missing" in " ".join(capsys.readouterr().out.split())


def test_gc_says_what_would_go_and_goes_only_when_told(filled, capsys) -> None:
    store, _ = filled
    assert burnish("gc") == 0
    assert "nothing to delete" in capsys.readouterr().out
    for path in store.backend.root.rglob("*"):
        os.utime(path, (0, 0))
    assert burnish("gc") == 0
    text = capsys.readouterr().out
    assert "would delete 0 results, 1 manifests and 1 blobs, 6 bytes; say --delete to do it" in text
    assert len(list(store.backend.list("blobs/"))) == 3
    assert burnish("gc", "--delete") == 0
    text = capsys.readouterr().out
    assert "blobs: 1 of 1 deleted" in text
    assert "deleted 0 results, 1 manifests and 1 blobs, 6 bytes" in text
    assert len(list(store.backend.list("blobs/"))) == 2


@pytest.mark.parametrize("option", ["--grace-hours=-1", "--grace-hours=nan", "--keep-trainer-states=0"])
def test_a_wrong_option_is_explained(option: str, capsys) -> None:
    assert burnish("gc", option) == 2
    assert "give " in capsys.readouterr().err


def test_without_a_store_the_fix_is_said(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.delenv("BURNISH_STORE", raising=False)
    assert burnish("ls", "--home", str(tmp_path)) == 4
    assert "set BURNISH_STORE or give --home" in capsys.readouterr().err


def test_the_embedded_store_of_local_runs_is_looked_at_without_settings(tmp_path, monkeypatch, capsys) -> None:
    from burnish.store.seaweed import start_seaweed

    monkeypatch.delenv("BURNISH_STORE", raising=False)
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    home = tmp_path / "home"
    with start_seaweed(home) as environment, monkeypatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        open_store().put_run_record(StageRecord(run_id="local-run", stage="sft", key="a" * 64))
    assert burnish("ls", "--home", str(home)) == 0
    assert "local-run" in capsys.readouterr().out
