"""Device, threads and seeds of a stage that computes with torch, set up in one place.

Every torch stage calls `setup_torch` first, so that the same configuration and seed give the same numbers.
"""

import os
from typing import Any

import torch

from burnish.contracts.config import RuntimeConfig
from burnish.contracts.errors import ConfigError


def setup_torch(runtime: RuntimeConfig, seed: int) -> torch.device:
    """Choose the device, set threads, seed torch and make its algorithms deterministic; returns the device.

    Raises ConfigError when `runtime.device` asks for a GPU that torch does not see.
    """
    device = choose_device(runtime)
    if runtime.threads:
        torch.set_num_threads(runtime.threads)
    torch.manual_seed(seed)
    # cuBLAS reads this at its first call; without it deterministic matrix products are refused.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # On a GPU some attention kernels have no deterministic backward: those warn instead of failing the stage.
    torch.use_deterministic_algorithms(True, warn_only=device.type == "cuda")
    # Filling every torch.empty with NaN is a debugging aid that costs time and changes no result.
    deterministic: Any = torch.utils.deterministic
    deterministic.fill_uninitialized_memory = False
    return device


def choose_device(runtime: RuntimeConfig) -> torch.device:
    """The device that `runtime.device` names. Raises ConfigError when torch does not see it."""
    if runtime.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("runtime.device is 'cuda': torch sees no GPU here; use `auto` or `cpu`")
    if runtime.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(runtime.device)
