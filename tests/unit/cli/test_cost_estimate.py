import pytest

from burnish.cli.cost_estimate import estimate
from burnish.cli.home import run_id_of
from burnish.cli.main import main
from burnish.contracts.artifacts import StageRecord
from burnish.contracts.loading import parse_config
from burnish.contracts.stages import STAGES
from burnish.store import open_store
from pipelines.placement import ClusterPlacement

# Without GPUs every core costs 1 an hour; each stage of the earlier run took an hour.
PLACE = ClusterPlacement(gpus=False)
ROUND_STAGES = ("rollout", "execute", "reward", "logprob", "update")


def config(**more):
    return parse_config({"name": "demo", "rounds": 3, "cost": {"cpu_hour": 1.0}} | more)


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("BURNISH_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    return open_store()


def put_run(store, run_id, rounds=1, **more):
    uses = [("validate", None, ""), ("sft", None, ""), ("evaluate", None, "before"), ("evaluate", None, "after")]
    uses += [(stage, number, "") for number in range(1, rounds + 1) for stage in ROUND_STAGES]
    for stage, number, label in uses:
        values = {"run_id": run_id, "stage": stage, "round": number, "label": label, "key": "k"}
        values |= {"timings": {"total": 3600.0}, "resources": PLACE.of(stage).resources}
        store.put_run_record(StageRecord(**values | more.get(stage, {})))


def cores(*stages):
    return sum(PLACE.of(stage).resources["cpu"] for stage in stages)


def test_an_earlier_run_of_one_round_tells_what_three_would_cost(store):
    put_run(store, "demo-00000000")
    amount = cores("validate", "sft", "evaluate", "evaluate") + 3 * cores(*ROUND_STAGES)
    wanted = f"about {amount:.2f} USD, by what demo-00000000 took, which had other settings"
    assert estimate(config(), PLACE) == wanted


def test_the_run_of_this_very_configuration_goes_before_a_later_one_of_its_name(store):
    put_run(store, run_id_of(config()))
    put_run(store, "demo-ffffffff", sft={"timings": {"total": 7200.0}})
    put_run(store, "demo-long-ffffffff")
    assert estimate(config(), PLACE).endswith(f"by what {run_id_of(config())} took")


def test_shards_of_a_stage_are_one_use_of_it(store):
    put_run(store, "demo-00000000")
    whole = estimate(config(), PLACE)
    for shard in ("0", "1"):
        half = {"run_id": "demo-00000000", "stage": "rollout", "round": 1, "key": "k", "timings": {"total": 1800.0}}
        store.put_run_record(StageRecord(**half, shard=shard, resources=PLACE.of("rollout").resources))
    gathered = {"run_id": "demo-00000000", "stage": "rollout", "round": 1, "key": "k", "timings": {"total": 0.0}}
    gathered |= {"resources": PLACE.of("reward").resources, "metrics": {"shards": 2.0}}
    store.put_run_record(StageRecord(**gathered))
    assert estimate(config(), PLACE) == whole


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cost": {}}, "nothing has a price; set cost.gpu_hour"),
        ({}, "no run called 'demo' is in this store; run it with rounds=1"),
    ],
)
def test_without_prices_or_an_earlier_run_it_is_unknown_and_says_what_to_do(store, settings, words):
    assert estimate(config(**settings), PLACE).startswith(f"unknown: {words}")


def test_a_gpu_without_a_price_makes_it_unknown(store):
    put_run(store, "demo-00000000")
    assert estimate(config(), ClusterPlacement()) == "unknown: nvidia.com/gpu has no price; add it to cost.gpu_hour"


def test_what_another_machine_took_tells_nothing(store):
    put_run(store, "demo-00000000", update={"resources": {"cpu": 64.0}})
    assert "ran update with 64 cpu, this asks for 4 cpu" in estimate(config(), PLACE)
    put_run(store, "demo-00000000", update={"resources": {}})
    assert "ran update with resources that nobody noted" in estimate(config(), PLACE)


def test_a_stage_that_never_finished_makes_it_unknown(store):
    put_run(store, "demo-00000000", update={"error": "out of memory"})
    assert estimate(config(), PLACE).startswith("unknown: the earlier run has no finished update")


def test_plan_says_that_it_does_not_know_where_no_store_is_named(capsys, monkeypatch):
    monkeypatch.delenv("BURNISH_STORE", raising=False)
    with pytest.raises(SystemExit):
        main(["plan", "name=demo", "rounds=1", "cost.cpu_hour=1", "--cpu"])
    assert "cost         unknown: it is told from an earlier run; set BURNISH_STORE" in capsys.readouterr().out


def test_a_budget_over_gpus_without_a_price_is_refused_before_anything_is_sent(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["submit", "name=demo", "rounds=1", "cost.cpu_hour=1", "cost.budget=5", "--dry-run"])
    assert ended.value.code == 2
    assert "cost.budget is 5 but nvidia.com/gpu has no price" in capsys.readouterr().err


def test_every_stage_has_a_number_of_uses():
    assert set(STAGES) == {"validate", "sft", "evaluate", "report", *ROUND_STAGES}
