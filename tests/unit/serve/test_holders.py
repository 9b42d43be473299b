from burnish.serve.holders import Holders


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def labels(holders):
    return [holder.label for holder in holders.present()]


def test_who_was_not_heard_of_for_the_lease_is_gone():
    holders = Holders(60.0, clock := Clock())
    holders.touch("a", "shard 0")
    clock.now += 30
    holders.touch("b", "shard 1")
    assert labels(holders) == ["shard 0", "shard 1"]
    clock.now += 31
    assert labels(holders) == ["shard 1"]


def test_every_sign_of_life_begins_the_lease_anew_and_leaves_name_and_age():
    holders = Holders(60.0, clock := Clock())
    holders.touch("a", "round 1 - rollout")
    for _ in range(3):
        clock.now += 50
        holders.touch("a")
    (holder,) = holders.present()
    assert (holder.label, holders.age(holder)) == ("round 1 - rollout", 150.0)


def test_who_says_goodbye_is_gone_at_once_and_may_say_it_twice():
    holders = Holders(60.0, Clock())
    holders.touch("a")
    holders.touch("b")
    holders.release("a")
    holders.release("a")
    assert labels(holders) == ["b"]
