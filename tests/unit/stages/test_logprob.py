import random

import pytest
import torch
from rl_inputs import (
    changed,
    config_of,
    make_rollouts,
    make_workplace,
    read_logprobs,
    read_rollouts,
    write_rollouts,
)

from burnish.contracts.errors import ContractError
from burnish.models.char import make_char_model
from burnish.stages import logprob


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_trainer_s_logprobs_are_those_the_sampler_recorded(tmp_path, temperature):
    work = make_workplace(tmp_path, temperature=temperature)
    result = work.logprob(config_of())
    for rollout, row in zip(read_rollouts(work), read_logprobs(work), strict=True):
        assert row.sample_id == rollout.sample_id
        assert row.old_logprobs == pytest.approx(rollout.rollout_logprobs, abs=1e-5)
    assert result.metrics["mismatch_mean_abs"] < 1e-5
    assert result.metrics["ess"] == pytest.approx(1.0, abs=1e-6)
    assert result.metrics["ratio_outside_share"] == 0.0
    assert result.metrics["token_mult_prob_error"] == pytest.approx(1.0, abs=1e-5)
    assert 0 < result.metrics["entropy"] < 5


def test_the_order_of_rollouts_changes_no_row(tmp_path):
    work = make_workplace(tmp_path)
    work.logprob(config_of())
    before = {row.sample_id: row.old_logprobs for row in read_logprobs(work)}
    rollouts = read_rollouts(work)
    random.Random(1).shuffle(rollouts)
    write_rollouts(work, rollouts)
    work.logprob(config_of())
    after = {row.sample_id: row.old_logprobs for row in read_logprobs(work)}
    assert list(after) != list(before)
    for sample_id, values in before.items():
        assert after[sample_id] == pytest.approx(values, abs=1e-6)


def test_without_a_kl_term_the_reference_is_not_looked_at(tmp_path):
    work = make_workplace(tmp_path)
    (work.path / "reference" / "model.safetensors").unlink()
    result = work.logprob(config_of(kl={"coef": 0.0}))
    assert all(row.ref_logprobs is None for row in read_logprobs(work))
    assert result.metrics["kl_ref"] is None


def test_equal_weights_of_policy_and_reference_are_run_once(tmp_path, monkeypatch):
    work = make_workplace(tmp_path)
    loaded = []
    load = logprob.load_policy
    monkeypatch.setattr(
        logprob, "load_policy", lambda folder, **rest: loaded.append(folder.name) or load(folder, **rest)
    )
    result = work.logprob(config_of(kl={"coef": 0.1}))
    assert loaded == ["policy"]
    assert all(row.ref_logprobs == row.old_logprobs for row in read_logprobs(work))
    assert result.metrics["kl_ref"] == 0.0


def test_another_reference_is_run_and_its_kl_reported(tmp_path):
    work = make_workplace(tmp_path)
    make_char_model(work.folder("reference"), layers=1, width=32, seed=4)
    result = work.logprob(config_of(kl={"coef": 0.1}))
    assert all(row.ref_logprobs != row.old_logprobs for row in read_logprobs(work))
    assert result.metrics["kl_ref"] > 0.01


def test_a_sampler_that_is_off_shows_in_the_figures_and_in_the_worst_tokens(tmp_path):
    work = make_workplace(tmp_path)
    rollouts = read_rollouts(work)
    off = list(rollouts[5].rollout_logprobs)
    off[0] -= 1.5
    rollouts[5] = changed(rollouts[5], rollout_logprobs=off)
    write_rollouts(work, rollouts)
    result = work.logprob(config_of())
    tokens = sum(len(rollout.response_ids) for rollout in rollouts)
    assert result.metrics["mismatch_mean_abs"] == pytest.approx(1.5 / tokens, rel=1e-3)
    assert result.metrics["mismatch_kl"] == pytest.approx(-1.5 / tokens, rel=1e-3)
    assert result.metrics["ratio_outside_share"] == pytest.approx(1 / tokens)
    worst = result.metadata["logprobs"]["worst_tokens"][0]
    assert (worst["sample_id"], worst["position"]) == (rollouts[5].sample_id, 0)


def test_injected_tokens_do_not_enter_the_figures(tmp_path):
    work = make_workplace(tmp_path)
    rollouts = make_rollouts(work, groups=2)
    longest = max(range(len(rollouts)), key=lambda index: len(rollouts[index].response_ids))
    rollout = rollouts[longest]
    mask = [0, *rollout.loss_mask[1:]]
    rollouts[longest] = changed(rollout, loss_mask=mask, rollout_logprobs=[-99.0, *rollout.rollout_logprobs[1:]])
    write_rollouts(work, rollouts)
    assert work.logprob(config_of()).metrics["mismatch_mean_abs"] < 1e-5


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"top_p": 0.9}, "top_p=0.9"),
        ({"top_k": 50}, "top_k=50"),
        ({"logprobs_mode": "raw"}, "'raw'"),
    ],
)
def test_rollouts_that_cannot_be_recomputed_are_refused(tmp_path, fields, message):
    work = make_workplace(tmp_path)
    rollouts = read_rollouts(work)
    write_rollouts(work, [rollouts[0], changed(rollouts[1], **fields)])
    with pytest.raises(ContractError, match=message) as error:
        work.logprob(config_of())
    assert rollouts[1].sample_id in str(error.value)


def test_truncated_sampling_would_bias_the_ratio():
    # Why top_p is refused: the sampler renormalises over the kept tokens, the trainer does not.
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05])
    kept = probabilities[:2] / probabilities[:2].sum()
    assert float(probabilities[0] / kept[0]) == pytest.approx(0.8)


def test_an_empty_file_of_rollouts_is_refused(tmp_path):
    work = make_workplace(tmp_path)
    write_rollouts(work, [])
    with pytest.raises(ContractError, match="no rows"):
        work.logprob(config_of())
