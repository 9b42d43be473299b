from burnish.models.engine import Completion, Request, Sampling
from burnish.serve.worker import BatchStepper

SHORT, LONG = Sampling(1.0, 4), Sampling(1.0, 8)


class Echo:
    """An engine that takes whole batches only, and remembers them."""

    def __init__(self):
        self.batches = []

    def generate(self, requests, sampling):
        self.batches.append(([request.request_id for request in requests], sampling.max_new_tokens))
        for request in requests:
            yield Completion(request.request_id, [1], [-0.5], "stop")


def request(name):
    return Request(name, [1], 0)


def finish(stepper):
    done = []
    while stepper.busy:
        done += [completion.request_id for completion in stepper.step()]
    return done


def test_what_comes_while_a_batch_is_drawn_makes_the_next_batch():
    stepper = BatchStepper(engine := Echo())
    for name in "ab":
        stepper.add(request(name), SHORT)
    done = [completion.request_id for completion in stepper.step()]
    for name in "cd":
        stepper.add(request(name), SHORT)
    assert done + finish(stepper) == ["a", "b", "c", "d"]
    assert engine.batches == [(["a", "b"], 4), (["c", "d"], 4)]


def test_requests_with_other_sampling_settings_are_drawn_in_batches_of_their_own():
    stepper = BatchStepper(engine := Echo())
    for name, sampling in (("a", SHORT), ("b", LONG), ("c", SHORT)):
        stepper.add(request(name), sampling)
    assert sorted(finish(stepper)) == ["a", "b", "c"]
    assert engine.batches == [(["a", "c"], 4), (["b"], 8)]


def test_an_abandoned_request_that_waits_is_not_drawn():
    stepper = BatchStepper(engine := Echo())
    for name in "abc":
        stepper.add(request(name), SHORT)
    stepper.abandon("b")
    assert finish(stepper) == ["a", "c"]
    assert engine.batches == [(["a", "c"], 4)]
