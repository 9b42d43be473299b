from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rl_inputs import Workplace

from burnish.contracts.config import TaskConfig
from burnish.contracts.errors import StageError
from burnish.contracts.loading import parse_config
from burnish.contracts.parquet import read_records, write_records
from burnish.contracts.records import Prompt, Rollout
from burnish.models.char import make_char_model
from burnish.stages import rollout
from burnish.stages.rollout import choose_prompts

TASKS = [TaskConfig(source="sums", name="a"), TaskConfig(source="sums", name="b", weight=3.0)]


def prompts(task, count, split="train"):
    return [Prompt(f"{task}-{i:02d}", task, split, None, f"{i}+{i}=", {}) for i in range(count)]


def ids(rounds, per_round, *, seed=0, pool=None, tasks=TASKS):
    pool = pool or [*prompts("a", 5), *prompts("b", 7), *prompts("a", 3, "eval"), *prompts("c", 4)]
    return [
        [row.prompt_id for row in choose_prompts(pool, tasks, per_round=per_round, round=number, seed=seed)]
        for number in range(1, rounds + 1)
    ]


def test_every_prompt_is_used_once_before_any_is_used_again():
    walked = [name for chosen in ids(5, 4, tasks=TASKS[:1]) for name in chosen]
    for epoch in range(4):
        assert Counter(walked[5 * epoch : 5 * epoch + 5]) == Counter(f"a-{i:02d}" for i in range(5))
    assert walked[:5] != walked[5:10]


def test_tasks_are_mixed_by_weight_in_every_round():
    for chosen in ids(6, 8):
        assert Counter(name[0] for name in chosen) == {"a": 2, "b": 6}


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=4), st.integers(1, 9), st.integers(1, 6))
def test_shares_stay_within_one_prompt_of_the_weights(weights, per_round, rounds):
    tasks = [TaskConfig(source="sums", name=str(i), weight=weight) for i, weight in enumerate(weights)]
    pool = [row for task in tasks for row in prompts(task.title, 3)]
    counts = Counter(name[0] for chosen in ids(rounds, per_round, pool=pool, tasks=tasks) for name in chosen)
    for task in tasks:
        assert abs(counts[task.title] - rounds * per_round * task.weight / sum(weights)) < len(weights)
    assert counts.total() == rounds * per_round


def test_the_choice_does_not_depend_on_the_order_of_the_file_but_on_the_seed():
    pool = [*prompts("a", 5), *prompts("b", 7)]
    assert ids(3, 6, pool=pool) == ids(3, 6, pool=pool[::-1])
    assert ids(3, 6, pool=pool) != ids(3, 6, pool=pool, seed=1)


def test_held_out_prompts_are_never_chosen():
    pool = [*prompts("a", 2), *prompts("b", 2), *(p for p in prompts("a", 9, "eval") if p.prompt_id > "a-02")]
    assert {name for chosen in ids(9, 8, pool=pool) for name in chosen} == {"a-00", "a-01", "b-00", "b-01"}


def test_a_task_without_training_prompts_is_named():
    with pytest.raises(StageError, match="'b' has no training prompts"):
        ids(1, 4, pool=prompts("a", 5))


def config(batch_size=64, probe_tolerance=None, **model):
    return parse_config(
        {
            "seed": 3,
            "model": {"path": "char", **model},
            "tasks": [{"source": "sums", "name": "a"}],
            "rollout": {
                "prompts_per_round": 6, "samples_per_prompt": 3, "max_new_tokens": 5, "batch_size": batch_size,
                "probe_tolerance": probe_tolerance,
            },
            "runtime": {"threads": 1, "device": "cpu"},
        }
    )  # fmt: skip


@pytest.fixture
def place(tmp_path):
    place = Workplace(tmp_path)
    make_char_model(place.folder("policy"), layers=1, width=32, seed=0)
    place.versions["policy"] = {"policy_version": 4}
    write_records(place.folder("prompts") / "prompts.parquet", prompts("a", 4), Prompt)
    return place


def test_the_stage_writes_whole_groups_in_an_order_that_the_batch_size_does_not_change(place):
    result = place.run(rollout, "rollout", config(), round=2)
    rows = read_records(place.path / "rollouts" / "rollouts.parquet", Rollout)
    assert [row.sample_id for row in rows] == [f"r2-g{group}-s{index}" for group in range(6) for index in range(3)]
    assert {row.policy_version for row in rows} == {4}
    assert Counter(row.finish_reason for row in rows).keys() <= {"stop", "length"}
    tokens = sum(len(row.response_ids) for row in rows)
    assert result.metrics["samples"] == 18
    assert result.metrics["aborted"] == 0
    assert result.metrics["tokens"] == tokens
    assert result.metrics["response_length_mean"] == tokens / 18
    assert result.metrics["truncated_share"] == sum(row.finish_reason == "length" for row in rows) / 18
    assert result.counts["rollouts"] == {"samples": 18, "groups": 6, "tokens": tokens}
    first = (place.path / "rollouts" / "rollouts.parquet").read_bytes()

    place.run(rollout, "rollout", config(batch_size=2), round=2)
    again = read_records(place.path / "rollouts" / "rollouts.parquet", Rollout)
    assert [row.response_ids for row in again] == [row.response_ids for row in rows]

    place.run(rollout, "rollout", config(), round=2)
    assert (place.path / "rollouts" / "rollouts.parquet").read_bytes() == first


def test_another_round_draws_other_samples_of_other_groups(place):
    drawn = []
    for number in (1, 2):
        place.run(rollout, "rollout", config(), round=number)
        drawn.append(read_records(place.path / "rollouts" / "rollouts.parquet", Rollout))
    assert not {row.sample_id for row in drawn[0]} & {row.sample_id for row in drawn[1]}
    assert not {row.seed for row in drawn[0]} & {row.seed for row in drawn[1]}


def test_a_policy_that_gives_no_finite_logits_fails_the_stage(place):
    from burnish.models.load import load_policy, save_policy

    model, tokenizer, _ = load_policy(place.folder("policy"))
    with torch.no_grad():
        model.get_input_embeddings().weight.fill_(float("nan"))
    save_policy(model, tokenizer, place.folder("policy"))
    with pytest.raises(StageError, match="all 18 samples were aborted"):
        place.run(rollout, "rollout", config())


def test_a_policys_probe_is_scored_before_anything_is_drawn(place):
    from burnish.models.load import load_policy, save_policy
    from burnish.models.parallel import ParallelPolicy, Ranks

    assert place.run(rollout, "rollout", config()).metrics["probe_gap"] is None
    folder = place.folder("policy")
    model, tokenizer, _ = load_policy(folder)
    policy = ParallelPolicy(model, Ranks(), device=torch.device("cpu"), dtype=torch.float32)
    policy.take_probe(read_records(place.path / "rollouts" / "rollouts.parquet", Rollout))
    policy.save(folder, tokenizer, source=folder, trust_remote_code=False)
    assert place.run(rollout, "rollout", config()).metrics["probe_gap"] < 1e-5

    # Weights that are not those that were probed.
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(1.5)
    save_policy(model, tokenizer, folder)
    with pytest.raises(StageError, match=r"round 1 - rollout: .*more than rollout\.probe_tolerance 0\.05"):
        place.run(rollout, "rollout", config())
    assert place.run(rollout, "rollout", config(probe_tolerance=0)).metrics["probe_gap"] is None
