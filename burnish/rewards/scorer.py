"""What a scorer is, and the table of them: from a sample to one number, or to None where it has nothing to say."""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from burnish.contracts.config import RewardConfig, ScorerConfig
from burnish.contracts.errors import ConfigError
from burnish.contracts.records import Execution, Prompt, Rollout
from burnish.rewards.worker import VerifierWorker

SCORERS = ("exact", "math", "reasoning_gym", "code", "format", "length")
_BY_KIND = ("exact", "math", "reasoning_gym", "code")
# Kinds of verifier a scorer can judge; the others judge any sample.
APPLIES_TO = {"exact": {"exact"}, "math": {"math", "exact"}, "reasoning_gym": {"reasoning_gym"}, "code": {"code"}}


@dataclass(frozen=True)
class Sample:
    """All that is known of one completion."""

    rollout: Rollout
    prompt: Prompt
    execution: Execution | None


class Scorer(Protocol):
    """One component of the reward."""

    def score(self, sample: Sample) -> float | None:
        """Higher is better. None: not applicable to this prompt, or the verifier failed; never a stand-in 0."""


def make_scorer(config: ScorerConfig, worker: VerifierWorker) -> Scorer:
    """The scorer `config` asks for. Raises ConfigError for an unknown name or wrong params."""
    return _maker(config.name)(config, worker)


def default_scorers(kinds: Sequence[str]) -> list[ScorerConfig]:
    """One scorer for each kind of verifier among the prompts. Raises ConfigError for an unknown kind."""
    for kind in kinds:
        if kind not in _BY_KIND:
            nearest = difflib.get_close_matches(kind, _BY_KIND, n=1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"known: {', '.join(_BY_KIND)}"
            raise ConfigError(f"verifier kind {kind!r} is not known; {hint}")
    return [ScorerConfig(name=kind) for kind in _BY_KIND if kind in set(kinds)]


def check_scorers(config: RewardConfig) -> None:
    """Raise ConfigError for scorers that could not be made: unknown or repeated names, wrong params."""
    names = [scorer.name for scorer in config.scorers]
    for index, scorer in enumerate(config.scorers):
        if names.index(scorer.name) != index:
            raise ConfigError(f"reward.scorers.{index} is a second {scorer.name!r}; each scorer can be there once")
        # The worker starts no process before its first call.
        make_scorer(scorer, VerifierWorker(config.verifier_timeout_s))


def _maker(name: str) -> Callable[[ScorerConfig, VerifierWorker], Scorer]:
    if name == "exact":
        from burnish.rewards.exact import ExactScorer

        return ExactScorer
    if name == "math":
        from burnish.rewards.math import MathScorer

        return MathScorer
    if name == "reasoning_gym":
        from burnish.rewards.gym import GymScorer

        return GymScorer
    if name == "code":
        from burnish.rewards.code import CodeScorer

        return CodeScorer
    if name == "format":
        from burnish.rewards.format import FormatScorer

        return FormatScorer
    if name == "length":
        from burnish.rewards.length import LengthScorer

        return LengthScorer
    nearest = difflib.get_close_matches(name, SCORERS, n=1, cutoff=0.4)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"known: {', '.join(SCORERS)}"
    raise ConfigError(f"reward.scorers: {name!r} is no scorer; {hint}")
