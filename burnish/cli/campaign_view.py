"""A campaign on the terminal: one line a chunk while it runs, a table and where to look at its end."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from burnish.contracts.campaign import Campaign, Chunk, RoundFigures

_COLUMNS = ("chunk", "rounds", "reward", "KL", "held-out", "verdict", "minutes")


class ChunkLines:
    """Prints a line for each chunk that is done, and for what else changes."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._said: set[tuple[int, str]] = set()

    def show(self, campaign: Campaign) -> None:
        """Say what is new in this state of the campaign."""
        if campaign.chunks:
            chunk = campaign.chunks[-1]
            line = _line(chunk)
            if line and (chunk.number, line) not in self._said:
                self._said.add((chunk.number, line))
                self.tell(line)

    def tell(self, line: str) -> None:
        self._console.print(line, markup=False)


def print_campaign(campaign: Campaign) -> None:
    """The table of all chunks, and how the campaign stands."""
    console = Console(highlight=False, soft_wrap=True)
    table = Table(title=f"campaign {campaign.campaign_id}", title_justify="left", box=None, pad_edge=False)
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column == "verdict" else "right")
    for chunk in campaign.chunks:
        table.add_row(*_row(chunk))
    if campaign.chunks:
        console.print(table)
    console.print(standing(campaign), markup=False)


def standing(campaign: Campaign) -> str:
    """One sentence on how far the campaign is."""
    done = f"{campaign.rounds_done} rounds in {len([chunk for chunk in campaign.chunks if chunk.outcome])} chunks"
    took = f", {campaign.hours:.1f} h" if campaign.hours >= 0.05 else ""
    last = campaign.chunks[-1] if campaign.chunks else None
    text = f"campaign {campaign.campaign_id}: {campaign.status}, {done}{took}"
    if campaign.reason:
        text += f"; {campaign.reason}"
    if campaign.status == "running" and last and last.error:
        text += f"; chunk {last.number} failed: {last.error}"
    return text


def verdict_of(chunk: Chunk) -> str:
    """What became of the chunk, in a word or two."""
    outcome = chunk.outcome
    if outcome is None:
        return "failed" if chunk.status == "failed" else "running"
    if outcome.collapsed:
        return f"collapsed in round {outcome.last_round}"
    if chunk.short_of_budget:
        return "out of budget"
    return "rolled back, ok" if chunk.rolled_back else "ok"


def _line(chunk: Chunk) -> str:
    outcome = chunk.outcome
    if outcome is None and not chunk.link:
        return ""
    rounds = rounds_text(chunk)
    if outcome is None:
        attempt = f", attempt {chunk.attempt}" if chunk.attempt > 1 else ""
        return f"▶ chunk {chunk.number}: rounds {rounds}{attempt}  {chunk.link}" if chunk.status == "planned" else ""
    figures = f"reward {_series(outcome.rounds, 'reward')}  KL {_series(outcome.rounds, 'kl')}"
    held_out = f"  held-out {_pass_at_k(chunk)}" if outcome.after else ""
    mark = "✗" if outcome.collapsed else "✓"
    return f"{mark} chunk {chunk.number}: rounds {rounds}  {figures}{held_out}  {verdict_of(chunk)}"


def _row(chunk: Chunk) -> tuple[str, ...]:
    outcome = chunk.outcome
    if outcome is None:
        return (str(chunk.number), rounds_text(chunk), "-", "-", "-", verdict_of(chunk), "-")
    return (
        str(chunk.number),
        rounds_text(chunk),
        _series(outcome.rounds, "reward"),
        _series(outcome.rounds, "kl"),
        _pass_at_k(chunk),
        verdict_of(chunk),
        f"{outcome.seconds / 60:.1f}",
    )


def rounds_text(chunk: Chunk) -> str:
    """`6-10`; of a chunk that ended early, those that were trained."""
    first, last = chunk.start.round + 1, chunk.outcome.last_round if chunk.outcome else chunk.last_round
    return str(first) if first == last else f"{first}-{last}" if last > first else "none"


def _series(rounds: Sequence[RoundFigures], name: str) -> str:
    """`0.12 → 0.3`: the first and the last value."""
    values = [value for found in rounds if (value := getattr(found, name)) is not None]
    if not values:
        return "-"
    return f"{values[0]:.3g}" if len(values) == 1 else f"{values[0]:.3g} → {values[-1]:.3g}"


def _pass_at_k(chunk: Chunk) -> str:
    found = chunk.outcome.after if chunk.outcome else {}
    return "  ".join(f"{name} {value:.3f}" for name, value in found.items()) or "-"
