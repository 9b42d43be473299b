"""The rollout browser's data: the kept rollouts of every round as JSON that `page.js` filters and draws.

All of it is text that a model wrote: it goes into the page only through `embed_json` and `textContent`.
"""

import json
from collections.abc import Mapping
from typing import Any

from burnish.report.run import RunView, Sample
from burnish.report.tokens import split_text

TOKENS_IN_PAGE = 200_000
"""About 2 MB of page. More rollouts keep fewer tokens each, never fewer rollouts."""
PROMPT_CHARACTERS = 4000


def browser_data(view: RunView) -> dict[str, Any]:
    """Sample sets, distinct prompts and one item per kept rollout."""
    count = sum(len(found.shown) for found in view.sample_sets)
    room = max(64, TOKENS_IN_PAGE // max(1, count))
    prompts: dict[str, int] = {}
    items = []
    for index, found in enumerate(view.sample_sets):
        for sample in found.shown:
            prompt = prompts.setdefault(_cut(sample.rollout.prompt_text), len(prompts))
            items.append({"set": index, "prompt": prompt, **_item(sample, view.token_texts, room)})
    sets = [{"title": found.title, "round": found.round, "samples": found.stats.samples} for found in view.sample_sets]
    return {"sets": sets, "prompts": list(prompts), "items": items}


def embed_json(value: Any) -> str:
    """JSON that cannot end its script element, whatever the strings in it hold."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    # Half a surrogate pair is legal in a JSON string and not in UTF-8.
    return text.encode("utf-8", "replace").decode("utf-8")


def _item(sample: Sample, texts: Mapping[int, bytes] | None, room: int) -> dict[str, Any]:
    rollout = sample.rollout
    item: dict[str, Any] = {
        "id": rollout.sample_id,
        "group": rollout.group_id,
        "task": rollout.task,
        "policy": rollout.policy_version,
        "finish": rollout.finish_reason,
        "length": len(rollout.response_ids),
        "reward": _rounded(sample.value),
    }
    if sample.reward:
        item["components"] = {name: _rounded(value) for name, value in sample.reward.components.items()}
        item["flags"] = sample.reward.flags
    if sample.execution:
        item["verdicts"] = list(sample.execution.verdicts)
        item["details"] = list(sample.execution.details)
        item["stderr"] = sample.execution.stderr_head[:1000]
    if texts is None:
        item["text"] = rollout.text[: room * 4]
        return item
    head, tail = _window(len(rollout.response_ids), room)
    pieces = split_text(rollout.response_ids, texts)
    item["tokens"] = pieces[:head] + pieces[len(pieces) - tail :]
    if head + tail < len(pieces):
        item["gap"] = head
    if sample.logprob:
        shifts = _shifts(sample)
        item["shift"] = shifts[:head] + shifts[len(shifts) - tail :]
    return item


def _shifts(sample: Sample) -> list[int | None]:
    """Trainer's minus sampler's logprob of each token in hundredths of a nat; None on tokens nobody trained on."""
    assert sample.logprob is not None
    rollout = sample.rollout
    columns = zip(sample.logprob.old_logprobs, rollout.rollout_logprobs, rollout.loss_mask, strict=True)
    return [round(100 * (old - sampled)) if mask else None for old, sampled, mask in columns]


def _window(length: int, room: int) -> tuple[int, int]:
    """How many tokens are kept from the head and from the tail of a response."""
    return (length, 0) if length <= room else (room - room // 2, room // 2)


def _cut(text: str) -> str:
    return text if len(text) <= PROMPT_CHARACTERS else text[:PROMPT_CHARACTERS] + " …"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
