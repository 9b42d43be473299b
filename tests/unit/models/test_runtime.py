import pytest
import torch

from burnish.contracts.config import RuntimeConfig
from burnish.contracts.errors import ConfigError
from burnish.models.runtime import setup_torch


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_one_clear_error():
    with pytest.raises(ConfigError, match=r"runtime\.device is 'cuda'"):
        setup_torch(RuntimeConfig(device="cuda"), 0)


def test_the_same_seed_gives_the_same_numbers_and_the_threads_are_those_asked_for():
    before = torch.get_num_threads()
    draws = []
    for seed in (3, 3, 4):
        assert setup_torch(RuntimeConfig(device="cpu", threads=1), seed).type == "cpu"
        draws.append(torch.rand(3).tolist())
    assert torch.get_num_threads() == 1
    assert draws[0] == draws[1] != draws[2]
    assert torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(before)
    torch.use_deterministic_algorithms(False)
