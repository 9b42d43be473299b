#!/usr/bin/env python3
"""Write the table of docs/helm.md from the chart's values: `python3 helm/values_table.py`.

Every setting is a line of values.yaml below a comment that begins with `# --`.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
VALUES = ROOT / "helm/burnish/values.yaml"
PAGE = ROOT / "docs/helm.md"
BEGIN, END = "<!-- values -->", "<!-- end of values -->"
# Longer defaults are better read in the file itself.
_LONGEST = 60


def settings() -> Iterator[tuple[str, Any, str]]:
    """(dotted path, default, description) of every documented setting, in the file's order."""
    text = VALUES.read_text("utf-8")
    defaults = yaml.safe_load(text)
    open_keys: list[tuple[int, str]] = []
    description = ""
    for line in text.splitlines():
        if found := re.match(r" *# -- (.+)", line):
            description = found[1]
        elif found := re.match(r"( *)([\w./-]+):", line):
            while open_keys and open_keys[-1][0] >= len(found[1]):
                open_keys.pop()
            open_keys.append((len(found[1]), found[2]))
            if description:
                keys = [key for _, key in open_keys]
                value: Any = defaults
                for key in keys:
                    value = value[key]
                yield ".".join(keys), value, description
            description = ""


def table() -> str:
    rows = ["| Setting | Default | |", "|---|---|---|"]
    for path, value, description in settings():
        default = json.dumps(value)
        rows.append(f"| `{path}` | {f'`{default}`' if len(default) <= _LONGEST else 'see the file'} | {description} |")
    return "\n".join(rows)


def with_table(page: str) -> str:
    """The page with its table replaced."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text("utf-8")), "utf-8")
