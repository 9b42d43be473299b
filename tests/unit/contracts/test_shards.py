import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.contracts.errors import ConfigError, ContractError
from burnish.contracts.loading import load_config
from burnish.contracts.shards import Shard, all_shards
from burnish.contracts.stages import MAX_TASKS, check_task_budget, dag_tasks


@given(st.sets(st.text(min_size=1)), st.integers(1, 9), st.randoms())
def test_shards_deal_out_every_group_once_and_evenly_whatever_the_order_of_rows(ids, count, random):
    shuffled = sorted(ids)
    random.shuffle(shuffled)
    parts = [Shard.parse(text).of([*shuffled, *shuffled[:1]]) for text in all_shards(count)]
    assert parts == [Shard.parse(text).of(ids) for text in all_shards(count)]
    assert sorted(group for part in parts for group in part) == sorted(ids)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_tasks_that_take_turns_are_in_every_shard():
    ids = [f"r1-g{use}" for use in range(64)]
    for text in all_shards(2):
        part = Shard.parse(text).of(ids)
        assert 8 < sum(int(group.removeprefix("r1-g")) % 2 for group in part) < 24


@pytest.mark.parametrize("text", ["", "2", "0/3", "4/3", "1/-2", "a/b", "1.0/3"])
def test_what_is_no_shard_is_refused(text):
    with pytest.raises(ContractError, match="it must be like 2/3"):
        Shard.parse(text)


def test_more_shards_than_prompts_are_refused():
    with pytest.raises(ConfigError, match=r"shards is 5, and prompts_per_round is 4"):
        load_config(None, ["rollout.shards=5", "rollout.prompts_per_round=4"])


def test_execution_has_the_shards_of_the_rollouts_unless_told_otherwise():
    assert load_config(None).execute_shards == 1
    assert load_config(None, ["rollout.shards=3"]).execute_shards == 3
    assert load_config(None, ["rollout.shards=3", "execute.sharded=false"]).execute_shards == 1


def test_a_shard_and_a_gathering_count_as_tasks():
    assert dag_tasks(1, 3, 1) == dag_tasks(1) + 3
    assert dag_tasks(2, 3, 3) == dag_tasks(2) + 2 * 6


def test_too_many_shards_are_an_error_that_says_what_to_do():
    check_task_budget(2, 6, 6)
    with pytest.raises(ConfigError, match=rf"holds at most {MAX_TASKS}: use rounds <= 2, .*, or use fewer rollout.sha"):
        check_task_budget(3, 6, 6)
    with pytest.raises(ConfigError, match=rf"holds at most {MAX_TASKS}: use fewer rollout.shards$"):
        check_task_budget(1, 40, 1)
