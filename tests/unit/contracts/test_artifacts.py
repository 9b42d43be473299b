import pytest

from burnish.contracts.artifacts import Blob, Lineage, Manifest, canonical_json, stage_title
from burnish.contracts.errors import ConfigError, ContractError
from burnish.contracts.stages import MAX_TASKS, STAGES, check_task_budget, dag_tasks

DIGEST = "a" * 64


def manifest(**changes):
    blobs = [Blob(path="b.bin", sha256=DIGEST, size=3), Blob(path="a.bin", sha256=DIGEST, size=4)]
    return Manifest(**({"kind": "policy", "blobs": blobs, "lineage": Lineage(stage="sft")} | changes))


def test_the_order_of_blobs_does_not_change_the_identity():
    one = manifest()
    assert manifest(blobs=list(reversed(one.blobs))).digest == one.digest
    assert one.size == 7


def test_any_change_changes_the_identity():
    digests = {manifest().digest, manifest(kind="rollouts").digest, manifest(metadata={"policy_version": 1}).digest}
    assert len(digests) == 3


def test_a_manifest_comes_back_as_it_was_written():
    one = manifest(counts={"rows": 3}, metadata={"policy_version": 2})
    assert Manifest.from_json(one.to_json(), "here") == one


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "", "a//b", "a\\b", "."])
def test_a_blob_path_cannot_leave_the_artifact(path):
    with pytest.raises(ValueError, match="leaves the artifact"):
        Blob(path=path, sha256=DIGEST, size=0)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"kind": "policy", "manifest_version": 2}', "not json"])
def test_a_wrong_manifest_is_one_line_that_names_where_it_is(text):
    with pytest.raises(ContractError, match="manifest somewhere") as caught:
        Manifest.from_json(text, "somewhere")
    assert "\n" not in str(caught.value)


def test_canonical_json_refuses_what_json_has_no_number_for():
    with pytest.raises(ValueError):
        canonical_json({"x": float("nan")})


def test_titles_are_what_people_read():
    assert stage_title("update", 3) == "round 3 - update"
    assert stage_title("evaluate", label="after") == "evaluate - after"


def test_the_task_budget_holds_the_dag_small():
    most = max(rounds for rounds in range(50) if dag_tasks(rounds) <= MAX_TASKS)
    check_task_budget(most)
    with pytest.raises(ConfigError, match=f"rounds is {most + 1}.*use rounds <= {most}"):
        check_task_budget(most + 1)


def test_inputs_of_a_stage_are_outputs_of_another():
    made = {kind for stage in STAGES.values() for kind in stage.writes.values()}
    for stage in STAGES.values():
        assert set(stage.reads.values()) <= made
