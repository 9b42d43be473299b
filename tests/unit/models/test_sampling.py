from burnish.contracts.records import Prompt
from burnish.models.char import char_tokenizer
from burnish.models.engine import Completion, Sampling
from burnish.models.sampling import plan_samples, sample_prompts

PROMPTS = [Prompt("p1", "sums", "train", None, "3+4=", {}), Prompt("p2", "sums", "train", None, "1+1=", {})]


class Scripted:
    """An engine that answers 7 and ends, aborts every third request, and finishes in reverse order."""

    def __init__(self, tokenizer):
        self.answer = [*tokenizer("7")["input_ids"], tokenizer.eos_token_id]

    def generate(self, requests, sampling):
        for index, request in reversed(list(enumerate(requests))):
            reason = "abort" if index % 3 == 2 else "stop"
            yield Completion(
                request.request_id, self.answer, [-0.5, float("nan") if reason == "abort" else -0.1], reason
            )


def test_every_use_of_a_prompt_is_a_group_of_its_own():
    planned = plan_samples(char_tokenizer(), [PROMPTS[0], PROMPTS[1], PROMPTS[0]], 2, seed=1, prefix="r3")
    assert [sample.group_id for sample in planned] == ["r3-g0", "r3-g0", "r3-g1", "r3-g1", "r3-g2", "r3-g2"]
    assert [sample.prompt.prompt_id for sample in planned] == ["p1", "p1", "p2", "p2", "p1", "p1"]
    assert [sample.request.request_id for sample in planned][:3] == ["r3-g0-s0", "r3-g0-s1", "r3-g1-s0"]


def test_seeds_differ_between_samples_and_follow_from_the_stages_seed():
    def seeds(seed):
        return [sample.request.seed for sample in plan_samples(char_tokenizer(), PROMPTS, 4, seed=seed, prefix="r1")]

    assert len(set(seeds(1))) == 8
    assert seeds(1) == seeds(1)
    assert not set(seeds(1)) & set(seeds(2))
    assert all(0 <= seed < 2**63 for seed in seeds(1))


def test_rows_carry_everything_and_aborted_samples_are_left_out():
    tokenizer = char_tokenizer()
    planned = plan_samples(tokenizer, PROMPTS, 2, seed=1, prefix="r1")
    rows = list(sample_prompts(Scripted(tokenizer), tokenizer, planned, Sampling(0.7, 8), policy_version=5))
    assert [row.sample_id for row in rows] == ["r1-g1-s1", "r1-g0-s1", "r1-g0-s0"]
    row = rows[-1]
    row.check()
    assert (row.group_id, row.prompt_id, row.task, row.policy_version) == ("r1-g0", "p1", "sums", 5)
    assert (row.temperature, row.top_p, row.top_k, row.logprobs_mode) == (0.7, 1.0, 0, "processed")
    assert row.input_ids == tokenizer("3+4=")["input_ids"]
    assert row.response_ids[-1] == tokenizer.eos_token_id
    assert row.loss_mask == [1, 1]
    assert row.seed == planned[0].request.seed
    assert (row.prompt_text, row.text) == ("3+4=", "7")
