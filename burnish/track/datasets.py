"""The prompts of a run as MLflow datasets: one a task and split, so that runs on the same prompts can be found.

Only what they are is sent (source, arguments, counts, digest), never the prompts.
"""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from burnish.contracts.artifacts import StageRecord
from burnish.contracts.config import RunConfig
from burnish.track.run import store_location

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput

# MLflow's limit for a digest is 36 characters, for a source 65535.
DIGEST_LENGTH = 32
SOURCE_LIMIT = 65_000


def dataset_inputs(config: RunConfig, records: Sequence[StageRecord]) -> list["DatasetInput"]:
    """From what the last `validate` counted. Name `<task>/<split>`, digest that of the prompts' artifact."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    validated = [record for record in records if record.stage == "validate" and "prompts" in record.outputs]
    if not validated:
        return []
    record = validated[-1]
    digest = record.outputs["prompts"]
    tasks = {task.title: task for task in config.tasks}
    inputs = []
    for key, count in sorted(record.metrics.items()):
        name = key.removeprefix("prompts/")
        title, _, split = name.rpartition("/")
        if name == key or not title or count is None:
            continue
        source: dict[str, object] = {"artifact": digest, "store": store_location(), "seed": config.seed}
        task = tasks.get(title)
        if task:
            source |= {"source": task.source, "params": task.params}
        text = json.dumps(source)
        if len(text) > SOURCE_LIMIT:
            text = json.dumps(source | {"params": "too long; see the run's parameters"})
        dataset = Dataset(
            name[:500], digest[:DIGEST_LENGTH], "burnish", text, profile=json.dumps({"prompts": int(count)})
        )
        inputs.append(DatasetInput(dataset, [InputTag("mlflow.data.context", split)]))
    return inputs
