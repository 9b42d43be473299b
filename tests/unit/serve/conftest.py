"""A tiny policy and the one after an update, in a store that a rollout server reads."""

import asyncio
import io
from contextlib import redirect_stderr

import pytest
import torch
from fake_engine import FakeEngine
from rollout_server import TOKEN, RolloutServer, put_policy, store_in

from burnish.contracts.config import ModelConfig
from burnish.models.char import make_char_model
from burnish.models.load import load_trainable
from burnish.models.parallel import ParallelPolicy, Ranks
from burnish.serve import server as server_module
from burnish.serve.server import PolicyServer
from burnish.serve.settings import ServeSettings
from burnish.stages.sft_batches import Example
from sandbox.serve import JsonLog

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


@pytest.fixture
def play(tmp_path, monkeypatch):
    """Run a play with a server and the digests of two policies."""
    store = store_in(tmp_path)
    digests = []
    for version, name in enumerate("ab"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "name").write_text(name)
        digests.append(put_policy(store, folder, version).digest)
    engines = []

    async def start(settings):
        engines.append(FakeEngine())
        return engines[-1]

    FakeEngine.plan = []
    monkeypatch.setattr(server_module.EngineProcess, "start", start)

    def run(scene, log_level="error", **settings):
        async def all_of_it():
            server = PolicyServer(ServeSettings(engine="hf", drain_s=0, **settings), store, JsonLog(log_level))
            await server.warm_up()
            await scene(server, digests, engines)
            await server.drain()

        with redirect_stderr(io.StringIO()) as log:
            asyncio.run(all_of_it())
        return log.getvalue()

    run.store = store
    return run
