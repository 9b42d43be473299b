import dataclasses
import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from burnish.contracts.errors import ContractError
from burnish.contracts.parquet import iter_records, read_records, write_records
from burnish.contracts.records import Execution, Logprob, Prompt, Reward, Rollout

PROMPT = Prompt("p1", "sums", "train", [{"role": "user", "content": "3+4?"}], None, {"kind": "exact", "answer": "7"})
ROLLOUT = Rollout(
    sample_id="s1", episode_id="e1", turn=0, group_id="g1", prompt_id="p1", task="sums", policy_version=3,
    input_ids=[1, 2], response_ids=[5, 2], loss_mask=[1, 1], rollout_logprobs=[-0.5, -0.25], finish_reason="stop",
    temperature=1.0, top_p=1.0, top_k=0, seed=9, logprobs_mode="processed", prompt_text="3+4?", text="7",
)  # fmt: skip
EXECUTION = Execution("s1", ["passed", "timeout"], ["", "ended after 5 s"], "out", "err", 0.5)
REWARD = Reward("s1", {"exact": 1.0, "math": None}, 1.0, ["truncated"])
LOGPROB = Logprob("s1", [-0.5, -0.25], None, [0.125, 0.25])


@pytest.mark.parametrize("record", [PROMPT, ROLLOUT, EXECUTION, REWARD, LOGPROB], ids=lambda record: record.NAME)
def test_a_record_comes_back_as_it_was_written(tmp_path, record):
    count = write_records(tmp_path / "r.parquet", [record, record], type(record))
    assert count == 2
    assert read_records(tmp_path / "r.parquet", type(record)) == [record, record]


def test_missing_stays_missing(tmp_path):
    reward = Reward("s1", {"exact": None}, None)
    write_records(tmp_path / "r.parquet", [reward], Reward)
    (back,) = read_records(tmp_path / "r.parquet", Reward)
    assert back.reward is None
    assert back.components == {"exact": None}


def test_an_empty_file_is_a_valid_file(tmp_path):
    assert write_records(tmp_path / "r.parquet", [], Execution) == 0
    assert read_records(tmp_path / "r.parquet", Execution) == []


def test_more_rows_than_a_batch_are_streamed(tmp_path):
    rows = (Execution(f"s{index}", ["passed"]) for index in range(2500))
    assert write_records(tmp_path / "r.parquet", rows, Execution) == 2500
    assert [row.sample_id for row in iter_records(tmp_path / "r.parquet", Execution)] == [
        f"s{index}" for index in range(2500)
    ]


def test_the_wrong_record_type_is_refused(tmp_path):
    write_records(tmp_path / "r.parquet", [PROMPT], Prompt)
    with pytest.raises(ContractError, match=r"r\.parquet.*'prompt'.*expected 'rollout'"):
        read_records(tmp_path / "r.parquet", Rollout)


@pytest.mark.parametrize("version", ["1", "3"])
def test_an_older_or_newer_schema_is_refused(tmp_path, version):
    schema = Execution.SCHEMA.with_metadata({"record": "execution", "schema_version": version})
    pq.write_table(pa.Table.from_pylist([], schema=schema), tmp_path / "r.parquet")
    with pytest.raises(ContractError, match=f"version {version}, this burnish reads 2"):
        read_records(tmp_path / "r.parquet", Execution)


def test_other_columns_are_refused(tmp_path):
    fields = [field for field in Execution.SCHEMA if field.name != "seconds"]
    schema = pa.schema(fields).with_metadata({"record": "execution", "schema_version": str(Execution.VERSION)})
    pq.write_table(pa.Table.from_pylist([], schema=schema), tmp_path / "r.parquet")
    with pytest.raises(ContractError, match="seconds"):
        read_records(tmp_path / "r.parquet", Execution)


def test_a_file_that_is_no_parquet_is_refused(tmp_path):
    (tmp_path / "r.parquet").write_bytes(b"not parquet at all")
    with pytest.raises(ContractError, match="not a readable parquet file"):
        read_records(tmp_path / "r.parquet", Execution)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"loss_mask": [1]}, "lengths 2, 1, 2"),
        ({"rollout_logprobs": [-0.5, math.nan]}, "null or non-finite"),
        ({"rollout_logprobs": [-0.5, None]}, "null or non-finite"),
        ({"rollout_logprobs": [-0.5, -math.inf]}, "null or non-finite"),
        ({"loss_mask": [1, 2]}, "loss_mask"),
        ({"finish_reason": "eos"}, "finish_reason"),
        ({"response_ids": [], "loss_mask": [], "rollout_logprobs": []}, "must not be empty"),
    ],
)
def test_a_rollout_that_contradicts_itself_is_not_written(tmp_path, change, words):
    with pytest.raises(ContractError, match=words):
        write_records(tmp_path / "r.parquet", [dataclasses.replace(ROLLOUT, **change)], Rollout)


def test_a_prompt_has_either_messages_or_text(tmp_path):
    with pytest.raises(ContractError, match="exactly one of messages and text"):
        write_records(tmp_path / "r.parquet", [dataclasses.replace(PROMPT, text="x")], Prompt)


def test_schemas_and_dataclasses_name_the_same_columns():
    for record_type in (Prompt, Rollout, Execution, Reward, Logprob):
        assert [field.name for field in dataclasses.fields(record_type)] == record_type.SCHEMA.names


def test_details_are_one_for_each_verdict_or_none_at_all(tmp_path):
    write_records(tmp_path / "r.parquet", [Execution("s1", ["passed", "wrong"])], Execution)
    with pytest.raises(ContractError, match="execution s1: 1 details for 2 verdicts"):
        write_records(tmp_path / "r.parquet", [Execution("s1", ["passed", "wrong"], ["got 3"])], Execution)
