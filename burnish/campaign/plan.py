"""What comes next in a campaign: a pure function of its state and its settings, so that a restart decides the same."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from burnish.contracts.artifacts import canonical_json
from burnish.contracts.campaign import Campaign, Chunk, Outcome, StartConfig
from burnish.contracts.config import RunConfig
from burnish.contracts.errors import ConfigError
from burnish.contracts.stages import check_task_budget


@dataclass(frozen=True)
class Ending:
    """Nothing comes next."""

    status: Literal["finished", "stopped"]
    reason: str = ""


def campaign_id_of(config: RunConfig) -> str:
    """Name and digest of the settings; how long the campaign goes on, and what it may cost, are not among them."""
    limits = {"campaign", "start", "rounds", "cost", "track", "report"}
    digest = hashlib.sha256(canonical_json(["campaign", config.model_dump(mode="json", exclude=limits)]).encode())
    return f"{config.name}-{digest.hexdigest()[:8]}"


def check_campaign(config: RunConfig) -> None:
    """Raises ConfigError when `config` cannot be trained chunk by chunk."""
    rounds, refresh = rounds_per_chunk(config), config.update.kl.refresh_interval
    if rounds < 1:
        raise ConfigError(
            "rounds is 0, and so campaign.rounds_per_chunk is: a campaign needs chunks of 1 round or more"
        )
    check_task_budget(min(rounds, config.campaign.rounds), config.rollout.shards, config.execute_shards)
    if refresh and refresh % rounds and rounds % refresh:
        raise ConfigError(
            f"update.kl.refresh_interval is {refresh} and a chunk has {rounds} rounds: one must be a multiple of the "
            "other, or the reference would be refreshed in the middle of a chunk that does not know of it"
        )
    if config.start.policy:
        raise ConfigError("start.policy is given: a campaign decides itself where each chunk starts; leave it out")


def rounds_per_chunk(config: RunConfig) -> int:
    return config.campaign.rounds_per_chunk or config.rounds


def next_step(campaign: Campaign, config: RunConfig, gentler: Callable[[str], str]) -> Chunk | Ending:
    """The chunk after the last one, all of which are done, or the end.

    gentler: digest of the verdict to roll back with, from that of the verdict that stopped a chunk.
    """
    settings, last = config.campaign, campaign.last
    ending = _ending(campaign, config)
    if ending:
        return ending
    rounds = rounds_per_chunk(config)
    # Borders stay where they are after a chunk that ended early.
    rounds = min(rounds - campaign.rounds_done % rounds, settings.rounds - campaign.rounds_done)
    number = len(campaign.chunks) + 1
    at_the_end = campaign.rounds_done + rounds >= settings.rounds
    rolled_back = last is not None and last.collapsed
    return Chunk(
        number=number,
        run_id=f"{campaign.campaign_id}-{number:04d}",
        start=_start(campaign, config, gentler),
        rounds=rounds,
        evaluated=at_the_end or (settings.evaluate_every > 0 and number % settings.evaluate_every == 0),
        rolled_back=rolled_back,
        budget=None if config.cost.budget is None else config.cost.budget - (campaign.cost or 0.0),
    )


def chunk_overrides(chunk: Chunk, config: RunConfig) -> list[str]:
    """What a run of `chunk` sets on top of the campaign's configuration; no value holds a space."""
    start = [
        f"start.{name}={value}" for name, value in chunk.start.model_dump(mode="json", exclude_defaults=True).items()
    ]
    skip = ["before"] if chunk.number > 1 and not chunk.start.evaluation else []
    skip += [] if chunk.evaluated else ["after"]
    overrides = [f"rounds={chunk.rounds}", *start, f"evaluate.skip=[{','.join(skip)}]"]
    if config.campaign.on_collapse != "continue" and config.collapse.action == "warn":
        overrides.append("collapse.action=stop")
    if chunk.budget is not None:
        overrides.append(f"cost.budget={chunk.budget!r}")
    return overrides


def _ending(campaign: Campaign, config: RunConfig) -> Ending | None:
    settings, last = config.campaign, campaign.last
    if last is None:
        return None
    if last.collapsed:
        why = "; ".join(last.reasons)
        if settings.on_collapse != "rollback":
            return Ending("stopped", f"collapse in round {last.last_round}: {why}")
        if campaign.rollbacks >= settings.max_rollbacks:
            return Ending("stopped", f"collapse in round {last.last_round} after {campaign.rollbacks} rollbacks: {why}")
    if campaign.rounds_done >= settings.rounds:
        return Ending("finished")
    if settings.max_hours is not None and campaign.hours >= settings.max_hours:
        return Ending("stopped", f"campaign.max_hours is {settings.max_hours:g}, and {campaign.hours:.2f} are over")
    return _out_of_budget(campaign, config)


def _out_of_budget(campaign: Campaign, config: RunConfig) -> Ending | None:
    if config.cost.budget is None:
        return None
    spent = campaign.cost or 0.0
    left = config.cost.budget - spent
    chunk = campaign.chunks[-1]
    # A chunk that found its budget too small for another round would find so again, until there is more.
    lately = (chunk.budget or 0.0) - ((chunk.outcome and chunk.outcome.cost) or 0.0)
    if left > 0 and not (chunk.short_of_budget and left <= lately + 1e-9):
        return None
    over = config.cost.text(spent)
    return Ending("stopped", f"cost.budget is {over}, which bears no other round; a larger one goes on from here")


def _start(campaign: Campaign, config: RunConfig, gentler: Callable[[str], str]) -> StartConfig:
    last: Outcome | None = campaign.last
    known = {"total_rounds": config.campaign.rounds, "campaign": campaign.campaign_id}
    if last is None:
        return StartConfig.model_validate(known)
    refresh = config.update.kl.refresh_interval
    return StartConfig.model_validate(
        known
        | {name: getattr(last, name) for name in ("policy", "trainer_state", "critic", "evaluation")}
        | {
            "round": last.last_round,
            "verdict": gentler(last.verdict) if last.collapsed else last.verdict,
            "reference": "" if refresh and last.last_round % refresh == 0 else last.reference,
        }
    )
