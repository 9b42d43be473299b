"""A tiny policy and the one after an update, in a store that a rollout server reads."""

import pytest
import torch
from rollout_server import TOKEN, RolloutServer, put_policy, store_in

from burnish.contracts.config import ModelConfig
from burnish.models.char import make_char_model
from burnish.models.load import load_trainable
from burnish.models.parallel import ParallelPolicy, Ranks
from burnish.stages.sft_batches import Example

EXAMPLES = [Example([3 + i, 14, 15, 9], [26, 5, 35 + i, 1]) for i in range(6)]


def train_a_step(source, out, *, amount=0.05, seed=5):
    """The policy in `source` as an update leaves it, its probe included."""
    model, tokenizer, _ = load_trainable(source, ModelConfig(path="char"), device="cpu", seed=0)
    policy = ParallelPolicy(model, Ranks(), device=torch.device("cpu"), dtype=torch.float32)
    policy.take_probe(EXAMPLES)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += amount * torch.randn(parameter.shape, generator=generator)
    out.mkdir(parents=True)
    policy.save(out, tokenizer, source=source, trust_remote_code=False)
    return out


@pytest.fixture(scope="session")
def shop(tmp_path_factory):
    """The folder with the store."""
    return tmp_path_factory.mktemp("rollout-server")


@pytest.fixture(scope="session")
def folders(shop):
    """Two policies, the second an update of the first."""
    first = make_char_model(shop / "first", layers=2, width=32, seed=0)
    return [first, train_a_step(first, shop / "second")]


@pytest.fixture(scope="session")
def policies(shop, folders):
    """Their manifests."""
    return [put_policy(store_in(shop), folder, version) for version, folder in enumerate(folders)]


@pytest.fixture(scope="session")
def server(shop, policies):
    server = RolloutServer(shop)
    yield server
    assert server.stop() == 0


@pytest.fixture
def token(monkeypatch):
    monkeypatch.setenv("BURNISH_ROLLOUT_TOKEN", TOKEN)
