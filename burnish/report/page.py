"""The HTML report: one file, everything inline, no foreign hosts, readable without scripts up to the rollouts.

Whatever comes from a run is escaped here; a content security policy that admits only our own script is the
second line, because the rollouts are text written by a model.
"""

import base64
import hashlib
import re
from collections.abc import Mapping
from html import escape
from importlib.resources import files

import burnish
from burnish.report.browser import browser_data, embed_json
from burnish.report.curves import charts
from burnish.report.run import RunView
from burnish.report.sections import (
    curves_section,
    facts,
    lineage_section,
    problems_section,
    result_section,
    rollouts_section,
    settings_section,
    time_section,
)
from burnish.report.stability import stability_section
from burnish.report.summary import run_status

_MARK = re.compile(r"{{(\w+)}}")


def render_page(view: RunView) -> str:
    """`report.html` of a run."""
    first, rest = charts(view)
    sections = {
        "result": ("Result", result_section(view)),
        "stability": ("Stability", stability_section(view)),
        "curves": ("Curves", curves_section(first, rest)),
        "rollouts": ("Rollouts", rollouts_section(view)),
        "time": ("Time", time_section(view)),
        "lineage": ("Lineage", lineage_section(view)),
        "settings": ("Settings", settings_section(view)),
    }
    script = _package_file("page.js")
    values = {
        "title": escape(f"{view.config.name} - Burnish report"),
        "name": escape(view.config.name),
        "run_id": escape(view.run_id),
        "version": escape(burnish.__version__),
        "status": run_status(view),
        "facts": "".join(f"<div><dt>{escape(key)}</dt><dd>{escape(value)}</dd></div>" for key, value in facts(view)),
        "nav": "".join(f'<a href="#{key}">{title}</a>' for key, (title, body) in sections.items() if body),
        "problems": problems_section(view),
        "css": _package_file("page.css"),
        "script": script,
        "script_hash": "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "rollout_data": embed_json(browser_data(view)),
    }
    values |= {
        key: f'<section id="{key}"><h2>{title}</h2>{body}</section>' if body else ""
        for key, (title, body) in sections.items()
    }
    return _fill(_package_file("template.html"), values)


def _fill(template: str, values: Mapping[str, str]) -> str:
    """Every {{name}} of the template replaced in one pass: marks inside the values stay what they are, text."""
    return _MARK.sub(lambda mark: values[mark[1]], template)


def _package_file(name: str) -> str:
    return files("burnish.report").joinpath(name).read_text("utf-8")
