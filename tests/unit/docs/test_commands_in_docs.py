"""Commands on the pages and in the README exist: verbs, flags, settings, make targets, the chart's values, files."""

import argparse
import importlib
import re
import shlex
from pathlib import Path

import pytest
import yaml

from burnish.cli.main import VERBS
from burnish.contracts.config import RunConfig
from burnish.contracts.loading import section_model

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
VALUES = yaml.safe_load((ROOT / "helm/burnish/values.yaml").read_text())
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
SETTING = re.compile(r"[a-z_]+(\.\w+)*=")


@pytest.fixture(scope="module")
def burnish():
    parser = argparse.ArgumentParser(prog="burnish")
    parser.add_argument("--version", action="version", version="")
    verbs = parser.add_subparsers()
    for verb in VERBS:
        importlib.import_module(f"burnish.cli.{verb}").add_parser(verbs)
    return parser


def commands(page, prose=True):
    """Words of each command in the page's fenced shell blocks, and with `prose` in code within a line."""
    text = page.read_text()
    blocks = re.findall(r"^```(?:bash|sh|console)?\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in re.sub(r"\\\n", " ", block).splitlines()]
    if prose:
        outside = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
        lines += [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", outside)]
    for line in lines:
        for command in re.split(r"\s*(?:\||&&|;|&$)\s*", re.sub(r"(^|\s)#.*", "", line).strip()):
            try:
                words = shlex.split(command)
            except ValueError:
                continue
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                words.pop(0)
            if words:
                yield [words[0].removeprefix(".venv/bin/"), *words[1:]]


def of(program):
    return [(page, words) for page in PAGES for words in commands(page) if words[0] == program and len(words) > 1]


def check_setting(path):
    model = RunConfig
    for part in path.split("."):
        if part.isdigit():
            continue
        assert part in model.model_fields, f"{path}: {model.__name__} has no {part}"
        model = section_model(model.model_fields[part].annotation)
        if model is None:
            return


def test_every_verb_flag_and_setting_of_burnish_on_the_pages_exists(burnish):
    found = of("burnish")
    assert len(found) > 60
    for page, words in found:
        parser, where = burnish, f"{page.name}: {' '.join(words)}"
        for word in words[1:]:
            nested = next((one for one in parser._actions if isinstance(one, argparse._SubParsersAction)), None)
            # A flag's argument may look like a verb, and no verb but the first word is one.
            if nested and word in nested.choices:
                parser = nested.choices[word]
            elif nested and parser is burnish:
                assert word.startswith(("-", "...", "VERB")), f"{where}: there is no such verb"
            elif parser.prog.endswith(" sandbox"):
                break
            elif word.startswith("--"):
                assert word.split("=")[0] in parser._option_string_actions, f"{where}: there is no {word}"
            elif SETTING.match(word) and not word.startswith("a.b="):
                check_setting(word.split("=")[0])


def test_every_command_of_burnish_in_a_block_is_one_that_it_takes(burnish, monkeypatch):
    """Settings behind a flag, for one, are not taken."""

    def refuse(parser, message):
        raise ValueError(message)

    monkeypatch.setattr(argparse.ArgumentParser, "error", refuse)
    taken = 0
    for page in PAGES:
        for words in commands(page, prose=False):
            if words[0] == "burnish":
                try:
                    burnish.parse_args(words[1:])
                except ValueError as error:
                    pytest.fail(f"{page.name}: {' '.join(words)}: {error}")
                taken += 1
    assert taken > 30


def test_every_target_of_make_on_the_pages_exists():
    found = of("make")
    assert found
    for page, words in found:
        for word in words[1:]:
            assert word in TARGETS or re.fullmatch(r"[A-Z_]+=.*", word, re.DOTALL), f"{page.name}: make {word}"


def test_every_value_of_the_chart_on_the_pages_exists():
    settings = []
    for page in PAGES:
        settings += [(page, path) for path in re.findall(r"--set\s+['\"]?([\w.\[\]]+)=", page.read_text())]
    assert len(settings) > 10
    for page, path in settings:
        value = VALUES
        for part in path.split("."):
            assert part in value, f"{page.name}: --set {path}: {part} is no value of the chart"
            value = value[part]


def test_every_module_and_script_on_the_pages_exists():
    found = [*of("python"), *of("python3")]
    assert found
    for page, words in found:
        if words[1] == "-m":
            module = words[2].replace(".", "/").replace("<stage>", "update")
            there = [ROOT / f"{module}.py", ROOT / module / "__main__.py"]
            assert words[2] == "venv" or any(path.exists() for path in there), f"{page.name}: {words}"
        elif words[1].endswith(".py"):
            assert (ROOT / words[1]).exists(), f"{page.name}: {words}"


def test_every_example_on_the_pages_exists():
    for page in PAGES:
        for path in re.findall(r"\bexamples/[\w/.-]+\.yaml", page.read_text()):
            assert (ROOT / path).exists(), f"{page.name}: {path}"


def anchors(page):
    """GitHub's: lower case, spaces to dashes, everything else gone."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.M), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_between_the_pages_leads_somewhere():
    for page in PAGES:
        for link in re.findall(r"\]\((?!https?:|data:)([^)\s]+)\)", page.read_text()):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), f"{page.name}: {link}"
            if anchor and target.suffix == ".md":
                assert anchor in anchors(target), f"{page.name}: {link}"
