"""Drives a campaign: decide, write down, launch, wait, read what came out, write that down; again, until the end.

It may be killed anywhere. What was decided is known, whether it was launched can be asked, and what came out lies in
the store, so the next controller goes on where this one was.
"""

from collections.abc import Callable
from typing import Protocol

from burnish.campaign.log import CampaignLog
from burnish.campaign.outcome import gentler_verdict, read_outcome
from burnish.campaign.plan import Ending, next_step
from burnish.contracts.campaign import Campaign, Chunk, Outcome
from burnish.contracts.config import RunConfig
from burnish.contracts.errors import StageError
from burnish.store import ArtifactStore


class Launcher(Protocol):
    """Where chunks run."""

    def start(self, chunk: Chunk) -> str:
        """Start the run of this attempt at `chunk` unless there is one already; returns where people look at it."""

    def wait(self, chunk: Chunk) -> str | None:
        """Return when that run has ended: None, or why it failed."""


def drive(
    store: ArtifactStore,
    config: RunConfig,
    log: CampaignLog,
    launcher: Launcher,
    on_change: Callable[[Campaign], None] = lambda campaign: None,
) -> Campaign:
    """Train `config` to the campaign's end; `on_change` sees every state.

    Raises StageError when a chunk fails, which the next call tries again, and TakenOver.
    """

    def write(campaign: Campaign, **changes: object) -> Campaign:
        written = log.write(campaign, **changes)
        on_change(written)
        return written

    # The first change takes the campaign over: from here on no controller of before can write, or launch.
    campaign = write(log.latest(), status="running", reason="")
    while True:
        chunk = campaign.chunks[-1] if campaign.chunks and campaign.chunks[-1].status != "done" else None
        if chunk is None:
            step = next_step(campaign, config, lambda verdict: gentler_verdict(store, verdict, config.collapse))
            if isinstance(step, Ending):
                return write(campaign, status=step.status, reason=step.reason)
            chunk = step
            campaign = write(campaign, chunks=[*campaign.chunks, chunk])
        outcome = read_outcome(store, chunk, config.cost)
        if outcome is None and chunk.status == "failed":
            chunk = chunk.model_copy(update={"status": "planned", "attempt": chunk.attempt + 1, "error": None})
            campaign = write(campaign, chunks=[*campaign.chunks[:-1], chunk])
        if outcome is None:
            link = launcher.start(chunk)
            if link != chunk.link:
                chunk = chunk.model_copy(update={"link": link})
                campaign = write(campaign, chunks=[*campaign.chunks[:-1], chunk])
            error = launcher.wait(chunk)
            outcome = read_outcome(store, chunk, config.cost)
            if outcome is None:
                error = error or "its run ended and left no result in the store"
                chunk = chunk.model_copy(update={"status": "failed", "error": error})
                write(campaign, chunks=[*campaign.chunks[:-1], chunk])
                raise StageError(f"chunk {chunk.number} ({chunk.run_id}) failed: {error}")
        campaign = write(campaign, chunks=[*campaign.chunks[:-1], _done(chunk, outcome)])


def _done(chunk: Chunk, outcome: Outcome) -> Chunk:
    return chunk.model_copy(update={"status": "done", "error": None, "outcome": outcome})
