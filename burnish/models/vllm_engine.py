"""Sampling with vLLM inside this process: the same requests and completions as the transformers engine.

Everything that vLLM's defaults get wrong for training is set here: logprobs after the temperature, all
end-of-sequence ids, no sampling settings out of the model's files, float32 on a CPU.
"""

import importlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import isfinite, nan
from pathlib import Path
from typing import Any

import torch

from burnish.contracts.config import ModelConfig
from burnish.contracts.errors import ConfigError
from burnish.contracts.records import FinishReason
from burnish.contracts.sampling import RolloutConfig
from burnish.models.engine import Completion, Request, Sampling
from burnish.models.load import load_policy, load_tokenizer, read_eos_token_ids, save_policy
from burnish.models.lora import ADAPTER_FOLDER, has_adapter, read_adapter_settings

# In-process: a worker of its own costs 20 s and a second copy of the imports. CPU cores are the stage's to bind.
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


class VllmEngine:
    """An Engine over vLLM with the weights in `folder`; it also takes single requests at any time, and new weights."""

    def __init__(
        self, folder: Path, *, model: ModelConfig, rollout: RolloutConfig, device: torch.device, max_length: int
    ) -> None:
        """Raises ConfigError when vLLM is not installed."""
        self._vllm = import_vllm()
        tokenizer = load_tokenizer(folder, trust_remote_code=model.trust_remote_code)
        self._eos_token_ids = read_eos_token_ids(folder, tokenizer)
        settings: dict[str, Any] = {
            "skip_tokenizer_init": True,
            "trust_remote_code": model.trust_remote_code,
            "max_model_len": max_length,
            "logprobs_mode": "processed_logprobs",
            "generation_config": "vllm",
            "load_format": "safetensors",
            "enable_prefix_caching": True,
            "disable_log_stats": True,
            **(_gpu_settings(model, rollout) if device.type == "cuda" else _CPU_SETTINGS),
        }
        self._model = model
        self._done: list[Completion] = []
        """Finished while `score` waited for its own."""
        self._adapter: Any = None
        if has_adapter(folder) and model.lora.serve == "adapter":
            adapter = read_adapter_settings(folder)
            settings |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": _room_for(adapter.rank)}
            self._adapter = importlib.import_module("vllm.lora.request").LoRARequest(
                "policy", 1, str(folder / ADAPTER_FOLDER)
            )
        with _served_folder(folder, model, merge=has_adapter(folder) and self._adapter is None) as served:
            self._engine: Any = self._vllm.LLM(model=str(served), **settings).llm_engine

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Completion]:
        """One completion per request, in the order in which they finish."""
        for request in requests:
            self.add(request, sampling)
        while self.busy:
            yield from self.step()

    @property
    def busy(self) -> bool:
        """Whether a request is not done yet."""
        return bool(self._done) or bool(self._engine.has_unfinished_requests())

    def add(self, request: Request, sampling: Sampling) -> None:
        """Take one more request, at any time; `step` draws it."""
        self._add(request.request_id, request.input_ids, self._parameters(request, sampling))

    def abandon(self, request_id: str) -> None:
        """Draw no more of this request; it is never done."""
        self._engine.abort_request([request_id])

    def step(self) -> list[Completion]:
        """Draw one token of every request that is not done; those that are done with it."""
        done, self._done = self._done, []
        outputs = self._engine.step()
        return done + [_completion(output.request_id, output.outputs[0]) for output in outputs if output.finished]

    def score(self, input_ids: list[int], response_ids: list[int]) -> list[float]:
        """[R] log softmax(logits), at temperature 1, of each response token after the prompt."""
        parameters = self._vllm.SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
        self._add("score", [*input_ids, *response_ids], parameters)
        scored: Any = None
        while scored is None:
            for output in self._engine.step():
                if output.request_id == "score":
                    scored = output if output.finished else None
                elif output.finished:
                    self._done.append(_completion(output.request_id, output.outputs[0]))
        steps = scored.prompt_logprobs[len(input_ids) :]
        return [float(step[token].logprob) for step, token in zip(steps, response_ids, strict=True)]

    def reload(self, folder: Path) -> None:
        """Put the weights in `folder` in place of those in use, while nothing is being drawn.

        They must be of the same names and shapes: vLLM takes what fits and only logs the rest.
        """
        with _served_folder(folder, self._model, merge=has_adapter(folder)) as served:
            self._engine.collective_rpc("reload_weights", kwargs={"weights_path": str(served)})
        # A head tied to the embedding is not in the files; on a CPU it is a packed copy, which vLLM leaves as it was.
        self._engine.apply_model(_pack_heads)
        self._engine.reset_prefix_cache()

    def _add(self, request_id: str, input_ids: list[int], parameters: Any) -> None:
        self._engine.add_request(request_id, {"prompt_token_ids": input_ids}, parameters, lora_request=self._adapter)

    def _parameters(self, request: Request, sampling: Sampling) -> Any:
        return self._vllm.SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            max_tokens=sampling.max_new_tokens,
            seed=request.seed,
            logprobs=0,
            stop_token_ids=sorted(self._eos_token_ids),
            detokenize=False,
            output_kind=self._vllm.sampling_params.RequestOutputKind.FINAL_ONLY,
        )


# bfloat16 is four times slower on most CPUs, compiling takes minutes, and blocks longer than prompts are never shared.
_CPU_SETTINGS: dict[str, Any] = {"dtype": "float32", "enforce_eager": True, "block_size": 32}


def _pack_heads(model: torch.nn.Module) -> None:
    for name, module in model.named_modules():
        if name.rpartition(".")[2] == "lm_head":
            head: Any = module
            head.quant_method.process_weights_after_loading(head)


# What vLLM has kernels for.
_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)


def _room_for(rank: int) -> int:
    """Raises ConfigError when vLLM serves no adapters of this rank."""
    room = next((known for known in _LORA_RANKS if known >= rank), None)
    if room is None:
        raise ConfigError(
            f"model.lora.rank is {rank}: vLLM serves at most {_LORA_RANKS[-1]}; set model.lora.serve=merged"
        )
    return room


@contextmanager
def _served_folder(folder: Path, model: ModelConfig, *, merge: bool) -> Iterator[Path]:
    """The folder that vLLM loads: the policy's own, or a temporary one with its adapter folded into the weights."""
    if not merge:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="burnish-merged-") as merged:
        policy = load_policy(folder, attention=model.attention, trust_remote_code=model.trust_remote_code, merge=True)
        save_policy(policy.model, policy.tokenizer, Path(merged))
        del policy
        yield Path(merged)


def _gpu_settings(model: ModelConfig, rollout: RolloutConfig) -> dict[str, Any]:
    return {"dtype": model.dtype, "gpu_memory_utilization": rollout.gpu_memory_utilization}


def import_vllm() -> Any:
    """The vllm module, set up for use inside this process. Raises ConfigError when it is not installed."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        return importlib.import_module("vllm")
    except ModuleNotFoundError as error:
        if error.name != "vllm":
            raise
        raise ConfigError(
            "rollout.engine is 'vllm': vLLM is not installed here; use the vLLM image, "
            "pip install 'burnish[vllm]', or set rollout.engine=hf"
        ) from None


def _completion(request_id: str, output: Any) -> Completion:
    """vLLM's output as ours; a missing or non-finite logprob aborts the sample and is never made up."""
    response_ids = list(output.token_ids)
    drawn = [step.get(token) for token, step in zip(response_ids, output.logprobs or [], strict=False)]
    logprobs = [nan if entry is None or entry.logprob is None else float(entry.logprob) for entry in drawn]
    sound = bool(response_ids) and len(logprobs) == len(response_ids) and all(map(isfinite, logprobs))
    reason: FinishReason = output.finish_reason if sound and output.finish_reason in ("stop", "length") else "abort"
    return Completion(request_id, response_ids, logprobs, reason)
