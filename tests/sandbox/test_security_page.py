"""The tables in docs/security.md are those of the attack suite."""

import re
from pathlib import Path

import pytest

from sandbox.attacks.tables import families_table, layers_table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "security.md"


@pytest.mark.parametrize(("name", "table"), [("layers", layers_table()), ("families", families_table())])
def test_the_page_shows_the_suite_as_it_is(name, table):
    shown = re.search(rf"<!-- {name} -->\n(.*?)\n<!-- /{name} -->", PAGE.read_text("utf-8"), re.DOTALL)
    assert shown is not None
    assert shown.group(1) == table, f"put this between the marks:\n{table}"
