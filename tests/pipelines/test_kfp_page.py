import re
from pathlib import Path

from burnish.contracts.loading import load_config
from burnish.contracts.stages import MAX_TASKS, dag_tasks
from pipelines import train
from pipelines.placement import load_placement
from pipelines.placement_table import PAGE, rewritten
from pipelines.train import build_pipeline

ROOT = Path(__file__).parents[2]


def test_the_table_of_placement_is_what_the_code_says():
    """`make golden` writes it anew."""
    assert PAGE.read_text() == rewritten(PAGE.read_text())


def test_the_page_names_every_parameter_of_the_form():
    section = PAGE.read_text().partition("### Parameters")[2].partition("## Placement")[0]
    parameters = build_pipeline(load_config(None, ["rounds=1"])).pipeline_spec.root.input_definitions.parameters
    named = {name for row in section.splitlines() if row.startswith("| `") for name in re.findall(r"`(\w+)`", row)}
    assert set(parameters) <= named


def test_the_placement_on_the_page_is_one(tmp_path):
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    path = tmp_path / "placement.yaml"
    path.write_text(example)
    assert load_placement(path).of("update").gpus == 8


def test_the_limits_on_the_page_are_those_of_the_code():
    page = PAGE.read_text()
    assert f"At most {MAX_TASKS} tasks a run (7 rounds)" in page
    assert dag_tasks(7) <= MAX_TASKS < dag_tasks(8)
    assert f"beyond {train.MAX_IR_BYTES // 1000} kB `compile` refuses" in page
    for path in re.findall(r"\]\((?!https?:)([^)#]+)", page):
        assert (PAGE.parent / path).exists(), path
