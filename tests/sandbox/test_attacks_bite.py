"""Attacks that are shown to work once their guards are taken away, so that the suite is known to test something.

All of them are bounded: they touch what the scene has put up, and end by themselves.
"""

import pytest
from unguarded import succeeds

from sandbox.attacks import FAMILIES
from sandbox.attacks.scene import Scene

SHOWN = [(family, attack) for family in FAMILIES for attack in family.attacks if attack.succeeds_without]


@pytest.fixture(scope="module")
def scene():
    with Scene() as built:
        yield built


@pytest.mark.parametrize("attack", [attack for _, attack in SHOWN], ids=[f"{f.name}: {a.name}" for f, a in SHOWN])
def test_the_attack_works_where_nothing_stops_it(scene, attack):
    if attack.missing_here():
        pytest.skip(attack.missing_here())
    worked, seen = succeeds(attack, attack.succeeds_without, scene)
    assert worked, seen


def test_every_family_has_attacks_that_are_shown_to_work():
    assert {family.name for family, _ in SHOWN} == {family.name for family in FAMILIES}
