"""The settings of a stage's placement as the table in docs/kfp.md, made from the fields' own documentation.

`python3 -m pipelines.placement_table` writes it anew; a test holds the page to it.
"""

from pathlib import Path

from pipelines.stage_placement import PLACEMENT, StagePlacement

PAGE = Path(__file__).parents[1] / "docs" / "kfp.md"
START, END = "<!-- settings -->\n", "<!-- /settings -->\n"


def table() -> str:
    """Markdown: a row a setting, with the default of a light stage and, where it differs, that of update."""
    rows = ["| Setting of a stage | Default | |", "|---|---|---|"]
    for name, field in StagePlacement.model_fields.items():
        light, heavy = (_shown(getattr(PLACEMENT[stage], name)) for stage in ("execute", "update"))
        default = light if light == heavy else f"{light}; update: {heavy}"
        rows.append(f"| `{name}` | {default} | {' '.join((field.description or '').split())} |")
    return "\n".join(rows) + "\n"


def rewritten(page: str) -> str:
    """`page` with the table in its place."""
    before, _, rest = page.partition(START)
    _, _, after = rest.partition(END)
    return before + START + table() + END + after


def _shown(value: object) -> str:
    return (
        "none" if value is None or value == {} or value == [] else f"`{str(value).lower() if value is True else value}`"
    )


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text("utf-8")), "utf-8")
