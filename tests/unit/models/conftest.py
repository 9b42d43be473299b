"""One tiny model for all tests of this folder."""

import pytest
import torch

from burnish.models.char import make_char_model
from burnish.models.load import load_policy


@pytest.fixture(scope="session")
def char_folder(tmp_path_factory):
    return make_char_model(tmp_path_factory.mktemp("char") / "model", layers=2, width=32, seed=0)


@pytest.fixture
def char_policy(char_folder):
    torch.set_num_threads(1)
    return load_policy(char_folder)
