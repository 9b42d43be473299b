import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from burnish.contracts.errors import ContractError
from burnish.serve.architecture import read_architecture


def test_an_update_leaves_the_shape_and_the_weights_do_not_count(folders):
    first, second = map(read_architecture, folders)
    assert first == second
    assert first.vocabulary == json.loads((folders[0] / "config.json").read_text())["vocab_size"]


@pytest.mark.parametrize("change", ["shape", "name", "type", "config"])
def test_any_other_name_shape_type_or_setting_is_another_shape(folders, tmp_path, change):
    folder = shutil.copytree(folders[0], tmp_path / "policy")
    path = next(folder.glob("*.safetensors"))
    tensors = load_file(path)
    name = sorted(tensors)[0]
    if change == "shape":
        tensors[name] = tensors[name][:-1].contiguous()
    elif change == "name":
        tensors[f"{name}.more"] = tensors.pop(name)
    elif change == "type":
        tensors[name] = tensors[name].to(torch.bfloat16)
    else:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.5}))
    save_file(tensors, path)
    assert read_architecture(folder) != read_architecture(folders[0])


def test_the_version_of_the_library_that_wrote_the_file_does_not_count(folders, tmp_path):
    folder = shutil.copytree(folders[0], tmp_path / "policy")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "transformers_version": "99.0"}))
    assert read_architecture(folder) == read_architecture(folders[0])


@pytest.mark.parametrize("content", [b"", b"1234567", b"\xff" * 64, (9).to_bytes(8, "little") + b"not json!"])
def test_a_file_that_is_no_safetensors_is_named(folders, tmp_path, content):
    (tmp_path / "config.json").write_bytes((folders[0] / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ContractError, match=r"model\.safetensors is no safetensors file"):
        read_architecture(tmp_path)


def test_pickled_weights_are_no_policy(folders, tmp_path):
    (tmp_path / "config.json").write_bytes((folders[0] / "config.json").read_bytes())
    (tmp_path / "pytorch_model.bin").write_bytes(b"anything")
    with pytest.raises(ContractError, match=r"lacks config\.json or \*\.safetensors"):
        read_architecture(tmp_path)
