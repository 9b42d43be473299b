"""Every attack of the suite, in the sandbox of this machine: none succeeds, and it is known what stopped it."""

import pytest

from sandbox.attacks import FAMILIES
from sandbox.attacks.attack import LAYERS
from sandbox.attacks.evidence import stopped_by
from sandbox.check import Range
from sandbox.verdicts import Result

ATTACKS = [(family, attack) for family in FAMILIES for attack in family.attacks]


@pytest.fixture(scope="module")
def place():
    with Range() as opened:
        yield opened


@pytest.mark.parametrize(
    ("family", "attack"), ATTACKS, ids=[f"{family.name}: {attack.name}" for family, attack in ATTACKS]
)
def test_the_attack_is_stopped(place, family, attack):
    finding = place.attempt(family, attack)
    if finding.outcome == "untried":
        pytest.skip(finding.evidence)
    assert finding.outcome == "stopped", finding
    assert finding.stopped_by in LAYERS


def test_there_are_enough_attacks_and_no_two_are_called_the_same():
    names = [attack.name for _, attack in ATTACKS]
    assert len(names) >= 60
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("stderr", "layer"),
    [
        # V8 ends itself where memory is refused before the host has seen how much it holds.
        ("#\n# Fatal error in , line 0\n# Fatal process out of memory: Zone\n#\n#\n", "resource limits"),
        ("Segmentation what?", None),
    ],
)
def test_an_end_is_a_layers_only_where_its_text_says_so(stderr, layer):
    attack = next(attack for _, attack in ATTACKS if attack.name == "JavaScript: threads without number")
    result = Result(("runtime_error",), ("SIGTRAP",), "", stderr, 0.1, False)
    assert stopped_by(attack, result) == layer
