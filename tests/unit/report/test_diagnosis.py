import re
from pathlib import Path

import pytest

from burnish.contracts.artifacts import Lineage, Manifest, StageRecord
from burnish.contracts.evaluation import Evaluation, PromptOutcome, Score
from burnish.contracts.loading import parse_config
from burnish.contracts.records import Reward, Rollout
from burnish.report.diagnosis import RULES, diagnose
from burnish.report.run import RunView, SampleSet, SampleStats, join_samples, sample_stats

GUIDE = Path(__file__).parents[3] / "docs" / "stability.md"
ROUNDS = 6

# A run that learns: each metric is a value, or one for every round.
HEALTHY = {
    "rollout": {
        "samples": 256.0,
        "response_length_mean": 40.0,
        "response_length_max": 90.0,
        "truncated_share": 0.02,
    },
    "reward": {
        "reward/mean": [0.2, 0.3, 0.4, 0.5, 0.55, 0.6],
        "reward/std": 0.45,
        "reward/missing": 0.0,
        "solved/mean": [0.2, 0.3, 0.4, 0.5, 0.55, 0.6],
        "groups/none_solved": [0.3, 0.2, 0.15, 0.1, 0.1, 0.1],
        "groups/all_solved": [0.0, 0.0, 0.05, 0.1, 0.1, 0.15],
        "groups/some_solved": [0.7, 0.8, 0.8, 0.8, 0.8, 0.75],
    },
    "logprob": {
        "entropy": [1.2, 1.1, 1.0, 0.9, 0.85, 0.8],
        "kl_ref": [0.0, 0.01, 0.02, 0.04, 0.05, 0.06],
        "mismatch_mean_abs": 0.01,
        "token_mult_prob_error": 1.005,
        "ess": 0.99,
    },
    "update": {
        "clip_fraction": 0.03,
        "ratio_max": 1.6,
        "grad_norm": 0.7,
        "zero_variance_share": 0.25,
        "negative_share": 0.5,
        "negative_gradient_share": 0.5,
        "staleness": 0.0,
    },
}
FLAT = {"reward/mean": 0.2, "solved/mean": 0.2, "groups/all_solved": 0.0}
FALLING = {"reward/mean": [0.6, 0.5, 0.3, 0.2, 0.1, 0.05], "solved/mean": [0.6, 0.5, 0.3, 0.2, 0.1, 0.05]}


def view_of(config=None, evaluations=None, sample_sets=(), verdicts=None, rounds=ROUNDS, **changed):
    """The healthy run with other settings and metrics; a metric that is None was not measured."""
    settings = {"rounds": rounds, "rollout": {"max_new_tokens": 128}} | (config or {})
    records, manifests = [], {}
    for round in range(1, rounds + 1):
        for stage, metrics in HEALTHY.items():
            values = metrics | changed.get(stage, {})
            outputs = {}
            if stage == "update":
                metadata = (verdicts or {}).get(round, {"status": "ok", "reasons": []})
                manifest = Manifest(kind="verdict", blobs=[], lineage=Lineage(stage="update"), metadata=metadata)
                manifests[manifest.digest] = manifest
                outputs = {"updated_verdict": manifest.digest}
            records.append(
                StageRecord(
                    run_id="r",
                    stage=stage,
                    round=round,
                    key="0",
                    outputs=outputs,
                    metrics={
                        name: value[round - 1] if isinstance(value, list) else value for name, value in values.items()
                    },
                )
            )
    return RunView("r", parse_config(settings), records, manifests, evaluations or {}, sample_sets)


def evaluation(label, passed):
    outcomes = [PromptOutcome(prompt_id=f"p{i}", task="sums", samples=8, passed=passed) for i in range(32)]
    score = Score(k=1, task=None, prompts=32, value=passed / 8, low=passed / 8, high=passed / 8)
    return Evaluation(label=label, policy_version=0, temperature=1.0, samples=8, scores=[score], outcomes=outcomes)


def lengthy(correlation):
    """Sample sets whose figures say how length and reward go together."""
    stats = [SampleStats(8, None, {}, None, None, correlation) for _ in range(ROUNDS)]
    return [SampleSet(f"round {round}", round, found, []) for round, found in enumerate(stats, start=1)]


TWO_SCORERS = {"scorers": [{"name": "exact"}, {"name": "format"}]}
PPO = {"preset": "ppo", "learning_rate": 1e-6}

# By rule: a run that has this fault, a figure that the evidence must show, and the setting that must be named.
FAULTS = {
    "Missing rewards": (
        {"reward": {"reward/missing": 30.0}, "config": {"reward": {"verifier_timeout_s": 4}}},
        "180 of 1536 samples (12%)",
        "reward.verifier_timeout_s=8",
    ),
    "Sparse reward": (
        {
            "reward": {
                "reward/mean": 0.03,
                "solved/mean": 0.03,
                "groups/all_solved": 0.0,
                "groups/none_solved": 0.8,
                "groups/some_solved": 0.2,
            }
        },
        "80% of the groups of 8",
        "rollout.samples_per_prompt=23",
    ),
    "Dead groups": (
        {"update": {"zero_variance_share": 0.75}},
        "75% of the late groups of 8",
        "rollout.samples_per_prompt=16",
    ),
    "Everything solved": (
        {
            "reward": {
                "groups/all_solved": [0.1, 0.3, 0.5, 0.7, 0.9, 0.9],
                "solved/mean": [0.2, 0.4, 0.6, 0.8, 0.9, 0.9],
            }
        },
        "90% of the late groups",
        "update.filters.zero_variance=true",
    ),
    "Held-out success flat": (
        {"evaluations": {"before": evaluation("before", 2), "after": evaluation("after", 2)}},
        "held-out pass@1 +0.0 points",
        "tasks.0.train_size=512",
    ),
    "One component carries the reward": (
        {
            "reward": {"reward/component/exact": 0.02, "reward/component/format": 0.98},
            "config": {"reward": TWO_SCORERS},
        },
        "format is 98% of the late reward; exact scores 0.02",
        "gate=true on exact",
    ),
    "Length pays": (
        {
            "rollout": {"response_length_mean": [40, 45, 55, 60, 70, 80]},
            "sample_sets": lengthy(0.7),
        },
        "0.70; length 40 -> 80",
        "reward.overlong_buffer=32",
    ),
    "Marks of hacking": ({"reward": {"flag/exits_early": [0, 0, 1, 4, 0, 7]}}, "12 x exits_early", "gate the reward"),
    "KL too strong": (
        {
            "reward": FLAT,
            "logprob": {"kl_ref": 0.0005},
            "update": {"ratio_max": 1.01},
            "config": {"update": {"kl": {"coef": 0.5}}},
        },
        "KL 0.0005",
        "update.kl.coef=0.05",
    ),
    "KL too weak": (
        {"logprob": {"kl_ref": [0.0, 0.05, 0.1, 0.4, 0.9, 2.1]}, "config": {"update": {"kl": {"coef": 0.001}}}},
        "KL 0 -> 2.1",
        "update.kl.coef=0.01",
    ),
    "Clip too narrow": (
        {"update": {"clip_fraction": 0.4}, "config": {"update": {"learning_rate": 1e-5, "steps": 4}}},
        "40% of the late tokens",
        "update.learning_rate=5e-06",
    ),
    "Clip too wide": (
        {
            "update": {"clip_fraction": 0.0, "ratio_max": 4.0},
            "config": {"update": {"loss": {"clip_low": 0.9, "clip_high": 5.0}}},
        },
        "ratios reach 4",
        "update.loss.clip_high=0.28",
    ),
    "Learning rate too high": (
        {
            "reward": FALLING,
            "logprob": {"kl_ref": [0.0, 0.2, 0.3, 0.35, 0.4, 0.4]},
            "config": {"update": {"learning_rate": 3e-4}},
        },
        "reward 0.6 -> 0.05; KL up to 0.4",
        "update.learning_rate=0.0001",
    ),
    "Learning rate too low": (
        {
            "reward": FLAT,
            "logprob": {"kl_ref": 1e-5},
            "update": {"ratio_max": 1.002},
            "config": {"update": {"learning_rate": 1e-8}},
        },
        "KL 1e-05",
        "update.learning_rate=3e-08",
    ),
    "Actor and critic rates far apart": (
        {"config": {"update": PPO | {"critic": {"learning_rate": 1e-3}}}},
        "1e+03 x update.learning_rate",
        "update.critic.learning_rate=1e-05",
    ),
    "Critic not learning": (
        {"update": {"explained_variance": -0.3}, "config": {"update": PPO}},
        "explained variance -0.30",
        "update.critic.warmup_rounds=2",
    ),
    "Entropy collapse": (
        {"reward": FLAT, "logprob": {"entropy": [1.2, 0.9, 0.5, 0.2, 0.1, 0.05]}},
        "entropy 1.20 -> 0.05",
        "update.loss.clip_high=0.28",
    ),
    "Entropy explosion": (
        {"logprob": {"entropy": [1.0, 1.4, 2.0, 2.8, 3.5, 4.0]}},
        "entropy 1.00 -> 4.00",
        "update.kl.coef=0.02",
    ),
    "Negative samples dominate": (
        {"update": {"negative_gradient_share": 0.93, "negative_share": 0.8}},
        "93% of the late gradient",
        "update.positive.advantage_weight=2",
    ),
    "Length limit too small": (
        {"rollout": {"truncated_share": [0.1, 0.2, 0.3, 0.5, 0.6, 0.6]}},
        "60% of the late responses hit the limit of 128",
        "rollout.max_new_tokens=256",
    ),
    "Length limit too large": (
        {"config": {"rollout": {"max_new_tokens": 4096}}},
        "90 tokens, the limit is 4096",
        "rollout.max_new_tokens=136",
    ),
    "Sampler and trainer disagree": (
        {
            "logprob": {"mismatch_mean_abs": 0.08, "token_mult_prob_error": 1.09, "ess": 0.7},
            "config": {"model": {"dtype": "bfloat16"}},
        },
        "0.080 nats, token_mult_prob_error 1.090",
        "model.dtype=float32",
    ),
    "Stale rollouts": (
        {
            "update": {"staleness": 2.0},
            "logprob": {"ess": 0.4, "mismatch_mean_abs": 0.2, "correction_rejected_share": 0.2},
            "config": {"max_staleness": 2},
        },
        "2.0 updates old, effective sample size 40%, 20% of the responses",
        "max_staleness=1",
    ),
    "The detector tripped": (
        {
            "verdicts": {
                3: {"status": "rolled_back", "reasons": ["kl 9 is above 0.5 in 3 of 5 steps: raise update.kl.coef"]},
                5: {"status": "stop", "reasons": ["ess 0.1 is below 0.5 in 3 of 5 steps: lower max_staleness"]},
            }
        },
        "round 3 was undone, round 5 was stopped: ess 0.1 is below 0.5 in 3 of 5 steps",
        "lower max_staleness",
    ),
}


def test_success_that_went_away_is_not_called_sparse():
    faults = {"reward": FALLING | {"groups/none_solved": [0.1, 0.2, 0.4, 0.6, 0.8, 0.9]}}
    found = diagnose(view_of(**faults, update={"clip_fraction": [0.4, 0.1, 0.0, 0.0, 0.0, 0.0]}))
    assert [diagnosis.rule for diagnosis in found] == ["Learning rate too high"]
    assert "up to 40% of the tokens clipped" in found[0].symptom.evidence


def test_a_healthy_run_has_no_finding():
    assert diagnose(view_of()) == []
    well = {"before": evaluation("before", 2), "after": evaluation("after", 5)}
    assert diagnose(view_of(evaluations=well, sample_sets=lengthy(0.2))) == []


def test_every_rule_has_a_run_that_it_names():
    assert FAULTS.keys() == RULES.keys()


@pytest.mark.parametrize("rule", RULES)
def test_a_faulty_run_gets_its_cause_with_evidence_and_a_setting(rule):
    faults, evidence, change = FAULTS[rule]
    found = {diagnosis.rule: diagnosis.symptom for diagnosis in diagnose(view_of(**faults))}
    assert list(found) == [rule], "one fault, one cause"
    symptom = found[rule]
    assert evidence in symptom.evidence
    assert change in symptom.change
    assert symptom.cause.endswith(".")


def test_no_rule_speaks_before_there_is_a_figure():
    empty = {stage: dict.fromkeys(metrics) for stage, metrics in HEALTHY.items()}
    assert diagnose(view_of(**empty)) == []
    assert diagnose(RunView("r", parse_config({}), [])) == []


@pytest.mark.parametrize("rounds", [1, 2])
def test_one_or_two_rounds_are_no_trend(rounds):
    found = {diagnosis.rule for diagnosis in diagnose(view_of(rounds=rounds, reward=FLAT, logprob={"kl_ref": 1e-6}))}
    assert not found & {"KL too strong", "Learning rate too low", "Entropy collapse", "Held-out success flat"}


def test_settings_that_are_named_exist():
    """Every a.b=c in a change is a setting that the configuration takes, or parse_config raises."""
    for faults, _, _ in FAULTS.values():
        for diagnosis in diagnose(view_of(**faults)):
            for name, value in re.findall(r"\b([a-z_]+(?:\.[a-z_0-9]+)+)=([\w.+-]*\w)", diagnosis.symptom.change):
                if name.startswith(("tasks.0", "reward.scorers")):
                    continue
                tree: dict = {}
                node = tree
                *sections, last = name.split(".")
                for section in sections:
                    node = node.setdefault(section, {})
                node[last] = True if value == "true" else value
                parse_config(tree)


def test_the_guide_has_one_section_for_each_rule_in_the_order_of_the_table():
    headings = re.findall(r"^### (.+)$", GUIDE.read_text(), re.MULTILINE)
    assert headings == list(RULES)


def test_every_section_of_the_guide_gives_a_symptom_evidence_and_a_setting():
    sections = re.split(r"^### ", GUIDE.read_text(), flags=re.MULTILINE)[1:]
    for section in sections:
        title = section.splitlines()[0]
        for word in ("**Symptom.**", "**Evidence.**", "**Cause.**", "**Change.**"):
            assert word in section, title
        assert "`" in section.partition("**Change.**")[2], title


def test_length_and_reward_are_compared_inside_their_group():
    """Long prompts that are easy are no sign: only within a group does length buy anything."""

    def samples(group, pairs):
        rollouts = [
            Rollout(
                f"{group}{i}", f"{group}{i}", 0, group, "p", "t", 0, [1], [5] * length, [1] * length, [-1.0] * length,
                "stop", 1.0, 1.0, 0, 0, "processed", "", "",
            )
            for i, (length, _) in enumerate(pairs)
        ]  # fmt: skip
        return join_samples(rollouts, [Reward(f"{group}{i}", {}, reward) for i, (_, reward) in enumerate(pairs)])

    between = samples("a", [(10, 0.0), (11, 0.0)]) + samples("b", [(90, 1.0), (91, 1.0)])
    assert sample_stats(between).length_reward is None
    inside = samples("a", [(10, 0.0), (20, 1.0)]) + samples("b", [(90, 1.0), (80, 0.0)])
    assert sample_stats(inside).length_reward == pytest.approx(1.0)
    assert sample_stats([]).length_reward is None


@pytest.mark.parametrize(("solved", "named"), [(0.3, True), (0.86, False)])
def test_a_limit_that_cuts_after_the_answer_is_not_too_small(solved, named):
    found = diagnose(view_of(rollout={"truncated_share": 0.7}, reward={"solved/mean": solved}))
    assert ("Length limit too small" in {diagnosis.rule for diagnosis in found}) == named
