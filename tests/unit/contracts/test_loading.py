from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.contracts.algorithm import Preset
from burnish.contracts.config import RunConfig
from burnish.contracts.errors import ConfigError
from burnish.contracts.loading import dump_config, load_config, parse_config
from burnish.contracts.presets import PRESETS, preset_fields


def test_overrides_reach_sections_and_lists(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("tasks: [{source: sums}, {source: code}]\nrollout: {temperature: 0.7}\n")
    config = load_config(path, ["tasks.1.weight=3", "update.learning_rate=1e-5", "rollout.max_new_tokens=9"])
    assert [task.weight for task in config.tasks] == [1.0, 3.0]
    assert config.update.learning_rate == 1e-5
    assert (config.rollout.temperature, config.rollout.max_new_tokens) == (0.7, 9)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("rolout.temperature=1", ["rolout", "did you mean 'rollout'"]),
        ("rollout.temprature=1", ["rollout.temprature", "did you mean 'temperature'"]),
        ("update.kl_coef=0.1", ["update.kl_coef", "did you mean 'kl.coef'"]),
        ("update.clip_high=0.3", ["update.clip_high", "did you mean 'loss.clip_high'"]),
        ("temperature=1", ["temperature", "did you mean 'rollout.temperature'"]),
        ("rollout.temperature=-1", ["rollout.temperature", "-1", "greater than 0"]),
        ("update.preset=ppoo", ["update.preset", "'ppoo'", "'grpo'"]),
        ("evaluate.k=[64]", ["evaluate", "k=64", "evaluate.samples >= 64"]),
        ("seed", ["'seed'", "a.b=c"]),
        ("name=Über", ["name", "'Über'"]),
        ("tasks=[{source: sums}, {source: sums}]", ["tasks", "'sums'", "name"]),
        ("tasks=[{weight: 2}]", ["tasks.0.source", "missing"]),
        ("tasks.0.weight=2", ["tasks", "list"]),
        ("seed.x=1", ["seed", "integer"]),
        ("rollout.temperature=[", ["rollout.temperature=[", "YAML"]),
    ],
)
def test_a_bad_override_is_one_line_that_names_the_field_and_the_fix(override, words):
    with pytest.raises(ConfigError) as caught:
        load_config(None, [override])
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_a_missing_and_a_broken_file_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.yaml.*does not exist"):
        load_config(tmp_path / "nowhere.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [")
    with pytest.raises(ConfigError, match=r"broken\.yaml.*YAML") as caught:
        load_config(broken)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_fills_what_is_empty_and_leaves_what_is_set(preset):
    update = parse_config({"update": {"preset": preset, "loss": {"clip_high": 0.5}}}).update
    for section, values in preset_fields(preset).items():
        expected = values | ({"clip_high": 0.5} if section == "loss" else {})
        assert {field: getattr(getattr(update, section), field) for field in expected} == expected


def test_every_preset_of_the_schema_is_defined_and_leaves_no_choice_open():
    assert set(PRESETS) == set(get_args(Preset))
    for name in PRESETS:
        update = parse_config({"update": {"preset": name}}).update
        sections = (update.advantage, update.loss, update.kl, update.filters, update.positive)
        # Bounds of a correction have defaults by its mode; the filters that stay empty are off.
        optional = {"length_quantile", "length_mad", "repetition"}
        empty = {field for section in sections for field, value in dict(section).items() if value is None}
        assert empty <= optional
        assert update.correction.mode is not None
        assert update.needs_critic == (name in {"ppo", "vapo"})


def test_gspo_does_not_inherit_the_clip_range_of_ppo():
    loss = parse_config({"update": {"preset": "gspo"}}).update.loss
    assert (loss.clip_low, loss.clip_high) == (3e-4, 4e-4)


def test_a_detector_that_could_never_trip_is_refused():
    with pytest.raises(ConfigError, match=r"collapse: patience=6 can never be reached within recent=5"):
        parse_config({"collapse": {"patience": 6}})


@given(
    seed=st.integers(0, 2**31 - 1),
    temperature=st.floats(0.01, 10, allow_nan=False),
    learning_rate=st.floats(0, 1, allow_nan=False),
    sources=st.lists(st.sampled_from(["sums", "code", "reasoning_gym:gcd"]), min_size=1, unique=True),
)
def test_a_dumped_configuration_loads_as_the_same(tmp_path_factory, seed, temperature, learning_rate, sources):
    config = parse_config(
        {
            "seed": seed,
            "rollout": {"temperature": temperature},
            "update": {"learning_rate": learning_rate},
            "tasks": [{"source": source} for source in sources],
        }
    )
    path = tmp_path_factory.mktemp("config") / "c.yaml"
    path.write_text(dump_config(config), "utf-8")
    assert load_config(path) == config


def test_every_field_is_documented():
    def undocumented(model, prefix=""):
        from burnish.contracts.loading import section_model

        for name, field in model.model_fields.items():
            if not field.description:
                yield prefix + name
            section = section_model(field.annotation)
            if section:
                yield from undocumented(section, f"{prefix}{name}.")

    assert list(undocumented(RunConfig)) == []


def test_a_view_shows_only_the_declared_sections():
    view = RunConfig().view(("seed", "rollout"))
    assert view.seed == 0
    assert view.rollout.temperature == 1.0
    with pytest.raises(AttributeError):
        view.update  # noqa: B018
