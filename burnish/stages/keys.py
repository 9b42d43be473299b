"""What a stage's result is remembered under: a digest of everything it depends on, and of nothing else."""

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import burnish
from burnish.contracts.artifacts import Manifest, canonical_json
from burnish.contracts.config import RunConfig
from burnish.contracts.stages import Stage


def result_key(
    stage: Stage,
    config: RunConfig,
    inputs: Mapping[str, Manifest],
    round: int | None,
    label: str,
    shard: str = "",
) -> str:
    """Digest of everything the stage's result depends on: settings it may read, inputs, place in the run, code."""
    # How many pods share the work is no part of what comes out.
    known = json.loads(config.model_dump_json(exclude={"rollout": {"shards"}, "execute": {"sharded"}}))
    settings = {section: known[section] for section in stage.sections}
    return hashlib.sha256(
        canonical_json(
            {
                "stage": stage.name,
                "round": round,
                "label": label,
                "shard": shard,
                "settings": settings,
                "inputs": {name: manifest.digest for name, manifest in inputs.items()},
                "code": code_digest(),
            }
        ).encode()
    ).hexdigest()


@cache
def code_digest() -> str:
    """Digest of the sources of burnish and the sandbox: changed code never meets results of the old code."""
    root = Path(burnish.__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(path for package in ("burnish", "sandbox") for path in (root / package).rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
