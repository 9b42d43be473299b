"""The verdict of an update: what the collapse detector says of its steps, and what follows from it.

Part of the update stage; the artifact it becomes is what the next rounds obey.
"""

from collections.abc import Mapping, Sequence

from burnish.contracts.algorithm import CollapseConfig
from burnish.contracts.verdict import Good, Verdict
from burnish.maths.collapse import Finding, detect, trimmed


def judge(
    previous: Verdict,
    rows: Sequence[Mapping[str, float | None]],
    round: int,
    inputs: Good,
    settings: CollapseConfig,
) -> Verdict:
    """The verdict of `round`, whose optimizer steps gave `rows` (keys as for maths.collapse.detect).

    `inputs` are what the round started from. With status `rolled_back` or `stop` the round's outputs must be the
    verdict's `last_good`, and what follows a roll-back uses its `lr_factor` and `clip_factor`.
    """
    good = inputs if previous.status in ("ok", "rolled_back") else previous.last_good or inputs
    history = [dict(row) for row in previous.history]
    finding = Finding("ok", [])
    if settings.action != "off":
        # Step by step, so that it does not matter how many steps a round has.
        for row in rows:
            history.append(dict(row))
            latest = detect(history, settings)
            if finding.status != "collapsed" or latest.status == "collapsed":
                finding = latest
    verdict = previous.model_copy(
        update={
            "status": "ok",
            "round": round,
            "reasons": finding.reasons,
            "history": trimmed(history, settings),
            "last_good": good,
        }
    )
    if finding.status == "ok":
        return verdict
    if finding.status == "warn" or settings.action == "warn":
        return verdict.model_copy(update={"status": "warn"})
    if settings.action == "rollback" and previous.rollbacks < settings.max_rollbacks:
        return verdict.model_copy(
            update={
                "status": "rolled_back",
                # The figures of what was undone are no measure of what comes.
                "history": [],
                "rollbacks": previous.rollbacks + 1,
                "lr_factor": previous.lr_factor * settings.lr_factor,
                "clip_factor": previous.clip_factor * settings.clip_factor,
            }
        )
    return verdict.model_copy(update={"status": "stop"})
