import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox import values
from sandbox.limits import Limits
from sandbox.spec import AssertTest, CallTest, SpecError, StdioTest, parse_spec


def test_the_three_kinds_of_test_are_told_apart_by_their_keys():
    spec = parse_spec(
        {
            "kind": "code",
            "entry_point": "f",
            "tests": [{"args": [1], "expected": 2}, {"stdin": "a", "stdout": "b"}, {"source": "assert f(1)"}],
        }
    )
    assert spec.tests == (CallTest([1], {}, 2), StdioTest("a", "b"), AssertTest("assert f(1)"))


@pytest.mark.parametrize(
    ("raw", "names"),
    [
        ({}, "tests"),
        ({"tests": []}, "tests"),
        ({"tests": "assert True"}, "tests"),
        ({"tests": [{"args": [1]}]}, "tests.0"),
        ({"tests": [{"args": 1, "expected": 1}], "entry_point": "f"}, "tests.0: args"),
        ({"tests": [{"expected": 1}]}, "entry_point"),
        ({"tests": [{"stdin": 1, "stdout": "x"}]}, "tests.0.stdin"),
        ({"tests": [{"source": "x"}], "entry_point": 3}, "entry_point"),
    ],
)
def test_a_wrong_specification_is_named(raw, names):
    with pytest.raises(SpecError, match=names):
        parse_spec(raw)


def test_limits_must_be_positive():
    with pytest.raises(ValueError, match="wall_s"):
        Limits(wall_s=0)


hashable = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
plain = st.recursive(
    hashable,
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(hashable, inner)
        | st.sets(hashable)
        | st.frozensets(hashable)
    ),
    max_leaves=20,
)


@given(plain)
def test_plain_values_survive_the_way_with_their_types(value):
    back = values.decode(values.encode(value))
    assert back == value
    assert type(back) is type(value)
    assert "\n" not in values.encode(value)


@pytest.mark.parametrize("value", [object(), lambda: 1, iter([]), 1j, range(3), [object()]])
def test_other_values_are_refused(value):
    with pytest.raises(values.UnsupportedValue):
        values.encode(value)


NOT_VALUES = """
{}
[1]
{"list": 3}
{"set": [{"list": []}]}
{"object": 1}
{"dict": [[1]]}
{"bytes": "x"}
nope
{"list": [], "set": []}
{"tuple": null}
{"bytes": 3}
{"dict": [[{"list": []}, 1]]}
"""


@pytest.mark.parametrize("text", NOT_VALUES.split("\n")[1:-1])
def test_anything_else_than_encoded_values_is_a_value_error(text):
    with pytest.raises(ValueError):
        values.decode(text)
