import pytest

from burnish.contracts.artifacts import StageRecord
from burnish.contracts.cost import CostConfig, beyond_budget, price, run_cost, stage_cost
from burnish.contracts.loading import parse_config
from pipelines.placement import ClusterPlacement

GPU = "nvidia.com/gpu"
# An hour on the GPU machine is 3.00: 2 for the GPU and 0.25 for each of 4 cores.
PRICES = CostConfig(gpu_hour={GPU: 2.0}, cpu_hour=0.25)
MACHINE = {"cpu": 4.0, GPU: 1.0}


def record(stage, hours, round=None, label="", **more):
    return StageRecord(
        **{"run_id": "r", "stage": stage, "round": round, "label": label, "key": "k", "resources": MACHINE}
        | {"timings": {"total": hours * 3600}}
        | more
    )


def rounds(count, hours=1.0):
    return [record(stage, hours / 2, number) for number in range(1, count + 1) for stage in ("rollout", "update")]


def budget(amount):
    return PRICES.model_copy(update={"budget": amount})


def test_a_stage_costs_its_seconds_times_what_its_pod_asked_for():
    assert price(1800, MACHINE, PRICES) == pytest.approx(1.5)
    assert price(3600, {"cpu": 2.0}, PRICES) == pytest.approx(0.5)
    assert price(3600, {"cpu": 2.0}, CostConfig(gpu_hour={GPU: 2.0})) == 0.0


@pytest.mark.parametrize(
    ("resources", "prices"),
    [({}, PRICES), (MACHINE, CostConfig()), ({"cpu": 1.0, "NVIDIA-L40S": 1.0}, PRICES)],
    ids=["resources unknown", "no price", "this GPU has no price"],
)
def test_what_is_not_known_has_no_cost_rather_than_none(resources, prices):
    assert price(3600, resources, prices) is None


def test_a_run_with_one_stage_of_unknown_cost_has_an_unknown_cost():
    assert run_cost([record("sft", 1), record("update", 2, 1)], PRICES) == pytest.approx(9.0)
    assert run_cost([record("sft", 1), record("update", 2, 1, resources={})], PRICES) is None
    assert run_cost([], PRICES) is None


def test_a_remembered_result_costs_the_run_that_worked_for_it():
    assert stage_cost(record("sft", 1, cached=True, cached_from="another"), PRICES) == 0.0
    assert stage_cost(record("sft", 1, cached=True, cached_from="r"), PRICES) == pytest.approx(3.0)


def test_a_failed_stage_costs_the_time_until_it_failed():
    failed = record("update", 0, 1, timings={}, started_at=1000.0, finished_at=1000.0 + 7200, error="out of memory")
    assert stage_cost(failed, PRICES) == pytest.approx(6.0)


def test_a_round_begins_only_if_it_and_the_last_evaluation_fit_the_budget():
    records = [record("sft", 1), record("evaluate", 0.5, label="before"), *rounds(2)]
    # 3.00 + 1.50 + 2 * 3.00 are spent; a third round and an evaluation are 3.00 + 1.50.
    assert beyond_budget(records, budget(15.0), 3) is None
    reason = beyond_budget(records, budget(14.99), 3)
    assert reason == (
        "cost.budget is 14.99 USD: 10.50 are spent, and another round with the last evaluation would take 4.50; "
        "a larger budget goes on from here"
    )
    assert beyond_budget(records, PRICES, 3) is None


def test_the_first_round_begins_unless_the_budget_is_spent_before_it():
    records = [record("sft", 1)]
    assert beyond_budget(records, budget(3.0), 1) is None
    assert beyond_budget(records, budget(2.9), 1)


def test_rounds_that_the_budget_skipped_are_no_measure_of_the_next_one():
    skipped = [record(stage, 0, 3, skipped=True) for stage in ("rollout", "update")]
    assert beyond_budget([*rounds(2), *skipped], budget(8.0), 4)
    assert beyond_budget([*rounds(2), *skipped], budget(9.0), 4) is None


def test_remembered_rounds_of_another_run_cost_nothing_but_tell_what_the_next_one_takes():
    records = [one.model_copy(update={"cached": True, "cached_from": "another"}) for one in rounds(2)]
    assert beyond_budget(records, budget(3.0), 3) is None
    assert beyond_budget(records, budget(2.9), 3)


def test_a_round_that_is_under_way_counts_as_the_last_one_did():
    # With max_staleness 1 round 3 samples while round 2 is updated, whose records are not all there.
    records = [*rounds(1), record("rollout", 0.5, 2)]
    assert beyond_budget(records, budget(9.0), 3) is None
    assert beyond_budget(records, budget(8.9), 3)


def test_pods_of_one_round_agree_whichever_of_them_asks_first():
    first = rounds(2)
    assert beyond_budget([*first, record("rollout", 9, 3)], budget(9.0), 3) == beyond_budget(first, budget(9.0), 3)


def test_a_budget_that_nobody_can_hold_stops_nothing():
    assert beyond_budget([record("sft", 100, resources={})], budget(1.0), 1) is None


def test_prices_know_a_gpu_by_its_node_label_else_by_its_resource():
    h100 = {"node_selector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}}
    placement = ClusterPlacement.model_validate({"gpu_stages": h100, "stages": {"reward": {"cpu": "500m"}}})
    assert placement.of("update").resources == {"cpu": 4.0, "NVIDIA-H100-80GB-HBM3": 1.0}
    assert ClusterPlacement().of("update").resources == MACHINE
    assert placement.of("reward").resources == {"cpu": 0.5}


def test_prices_are_settings_like_any_other():
    config = parse_config({"cost": {"gpu_hour": {GPU: 2}, "budget": 50}})
    assert config.cost.text(3.2) == "3.20 of 50.00 USD"
    assert CostConfig().text(3.2) == "3.20 USD"
