import pytest
import torch

from burnish.maths.diagnostics import mismatch

ROLLOUT = torch.tensor([-1.35, -0.48, -1.5, -0.6, -1.9, -0.75, -0.2], dtype=torch.float64)
OLD = torch.tensor([-1.3, -0.5, -1.5, -0.6, -1.1, -0.7, -0.2], dtype=torch.float64)


def test_golden_mismatch_figures():
    figures = mismatch(OLD, ROLLOUT, bounds=(0.9, 1.1), lengths=[3, 0, 4])
    assert figures.kl == pytest.approx(-0.125714, abs=1e-6)
    assert figures.k3 == pytest.approx(0.061183, abs=1e-6)
    assert figures.mean_abs == pytest.approx(0.131429, abs=1e-6)
    assert figures.chi2 == pytest.approx(0.589166, abs=1e-6)
    assert figures.chi2_sequence == pytest.approx((1.030455**2 + 2.339647**2) / 2 - 1, abs=1e-5)
    assert figures.token_mult_prob_error == pytest.approx(1.192612, abs=1e-6)
    assert figures.share_outside == pytest.approx(1 / 7)


def test_without_lengths_there_is_no_figure_of_sequences():
    assert mismatch(OLD, ROLLOUT, bounds=(0.9, 1.1)).chi2_sequence is None


def test_policies_that_agree_have_no_mismatch():
    figures = mismatch(OLD, OLD, bounds=(0.9, 1.1), lengths=[7])
    assert (figures.kl, figures.k3, figures.mean_abs, figures.chi2, figures.chi2_sequence) == (0, 0, 0, 0, 0)
    assert figures.token_mult_prob_error == 1
    assert figures.share_outside == 0


def test_without_tokens_there_are_no_figures():
    assert mismatch(torch.zeros(0), torch.zeros(0), bounds=(0.9, 1.1), lengths=[0]) is None
