"""Data parallelism: how the processes of a training stage share rows, gradients and figures, and FSDP2 spreads weights.

One process runs the same code with `Ranks()`, which has nobody to talk to and never touches torch.distributed.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from burnish.models.grouping import Completion, PackedBatch
from burnish.models.load import copy_policy, save_policy
from burnish.models.logprobs import plan_batches, token_logprobs
from burnish.models.lora import adapter_parameters, save_adapter
from burnish.models.probe import probe_model
from burnish.models.probe_weights import ProbeSample, choose_probe, write_probe

ItemT = TypeVar("ItemT")

_SCORE_TOKENS = 2048


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together; every method but `share` must be called by all of them."""

    rank: int = 0
    world: int = 1

    def share(self, items: Sequence[ItemT], costs: Sequence[float]) -> list[ItemT]:
        """This rank's stretch of `items`: as many stretches as ranks, in order, about equal in the sum of `costs`.

        Neighbours stay together, so samples of one prompt are cut apart at most where two stretches meet.
        """
        total, before = sum(costs), 0.0
        mine = []
        for item, cost in zip(items, costs, strict=True):
            # The stretch that holds the middle of the item.
            if min(int((before + cost / 2) * self.world / total), self.world - 1) == self.rank:
                mine.append(item)
            before += cost
        return mine

    def in_step(self, batches: Sequence[PackedBatch]) -> list[PackedBatch]:
        """`batches`, filled up with empty ones to the largest number on any rank: collectives come in lockstep."""
        if self.world == 1:
            return list(batches)
        most = torch.tensor(len(batches))
        dist.all_reduce(most, dist.ReduceOp.MAX)
        return [*batches, *[_EMPTY] * (int(most) - len(batches))]

    def total(self, value: float) -> float:
        """Sum of `value` over all ranks."""
        if self.world == 1:
            return value
        found = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(found)
        return found.item()

    def gather(self, values: Tensor) -> Tensor:
        """[T] on the CPU: the `values` [t] of all ranks, rank by rank; t may differ, the type may not."""
        if self.world == 1:
            return values
        counts = [torch.zeros(1, dtype=torch.long) for _ in range(self.world)]
        dist.all_gather(counts, torch.tensor([len(values)]))
        longest = max(int(count) for count in counts)
        parts = [torch.empty(longest, dtype=values.dtype) for _ in range(self.world)]
        dist.all_gather(parts, nn.functional.pad(values.cpu(), (0, longest - len(values))))
        return torch.cat([part[: int(count)] for part, count in zip(parts, counts, strict=True)])

    def clip_gradients(self, parameters: Iterable[nn.Parameter], limit: float) -> float:
        """Scale the gradients such that their norm over all weights is at most `limit`; returns the norm before.

        Also the moment at which gradients of weights that every rank holds whole are added up.
        """
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        if self.world == 1:
            return float(nn.utils.clip_grad_norm_(trained, limit))
        kept = [_gradient(parameter) for parameter in trained if not isinstance(parameter, DTensor)]
        parts = [parameter.grad.to_local() for parameter in trained if isinstance(parameter.grad, DTensor)]
        if kept:
            flat = torch.cat([gradient.flatten() for gradient in kept])
            dist.all_reduce(flat)
            for gradient, summed in zip(kept, flat.split([gradient.numel() for gradient in kept]), strict=True):
                gradient.copy_(summed.view_as(gradient))
        norm = math.sqrt(self.total(_squares(parts)) + _squares(kept))
        if norm > limit:
            torch._foreach_mul_([*parts, *kept], limit / (norm + 1e-6))
        return norm


class ParallelPolicy(nn.Module):
    """A policy to train: its forward pass is `token_logprobs`, its weights are spread over the ranks.

    On several ranks each loads the whole model, on the CPU, and keeps its shards on `device`. Matrices of the layers
    travel in the compute type `dtype`. Embedding and head are read in float32, and vectors (norms, biases) stay whole
    on every rank: that is what autocast computes with in one process, so logprobs do not depend on their number.
    """

    def __init__(self, model: PreTrainedModel, ranks: Ranks, *, device: torch.device, dtype: torch.dtype) -> None:
        """Raises ContractError when the trainer does not support the model."""
        super().__init__()
        self.model = model
        self.ranks = ranks
        self.dtype = dtype
        self._probe: tuple[list[ProbeSample], list[list[float]]] = ([], [])
        # Looks at whole weights, so it comes before they are spread.
        self.traits = dataclasses.replace(probe_model(model), device=device)
        if ranks.world > 1:
            spread(self, model, ranks, device=device, dtype=dtype)

    def forward(self, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        """Logprob of each completion token and entropy of its distribution, ([T], [T])."""
        return token_logprobs(self.model, batch, dtype=self.dtype)

    def clip_gradients(self, limit: float) -> float:
        """The norm of the gradient over all ranks, before it was scaled down to `limit`."""
        return self.ranks.clip_gradients(self.model.parameters(), limit)

    def take_probe(self, completions: Sequence[Completion]) -> None:
        """Score a few of `completions` now, before training; `save` scores them again and leaves both in the policy."""
        samples = choose_probe(completions)
        self._probe = samples, self.score(samples)

    @torch.no_grad()
    def score(self, completions: Sequence[Completion]) -> list[list[float]]:
        """Logprobs [R] of the tokens of each of `completions`, computed whole on every rank."""
        found: dict[int, list[float]] = {}
        for batch in plan_batches(self.traits, completions, token_budget=_SCORE_TOKENS, share_prompt=False):
            parts = torch.split(self(batch)[0].cpu(), batch.lengths)
            found |= {index: part.tolist() for index, part in zip(batch.order, parts, strict=True)}
        return [found[index] for index in range(len(completions))]

    def save(self, folder: Path, tokenizer: PreTrainedTokenizerBase, *, source: Path, trust_remote_code: bool) -> None:
        """Rank 0 writes the policy into `folder`; with an adapter, that and the unchanged base model in `source`."""
        samples, previous = self._probe
        logprobs = self.score(samples)
        adapter = {name: whole(parameter) for name, parameter in adapter_parameters(self.model).items()}
        weights = None if adapter else whole_weights(self.model)
        if self.ranks.rank:
            return
        if adapter:
            copy_policy(source, folder, trust_remote_code=trust_remote_code, adapter=False)
            save_adapter(self.model, adapter, folder)
        else:
            save_policy(self.model, tokenizer, folder, weights=weights)
        write_probe(folder, samples, logprobs, previous)


def spread(root: nn.Module, model: PreTrainedModel, ranks: Ranks, *, device: torch.device, dtype: torch.dtype) -> None:
    """Shard `root`, which holds `model`, over the ranks: each decoder layer, then what is left.

    Everything that reads weights must then happen inside `root`'s forward pass. Gradients are sums over ranks, never
    means: the losses' denominators are those of the whole optimizer step already.
    """
    mesh = init_device_mesh(device.type, (ranks.world,))
    vectors = {parameter for parameter in root.parameters() if parameter.ndim < 2}
    for vector in vectors:
        vector.data = vector.data.to(device)
    # Under autocast, inputs keep their type: the residual stream is float32.
    policy = MixedPrecisionPolicy(dtype, torch.float32, cast_forward_inputs=False)
    for layer in _decoder_layers(model):
        fully_shard(layer, mesh=mesh, mp_policy=policy, ignored_params=vectors)
    # Weights of the root are free between steps as well, so that parameters are always the shards outside of forward.
    fully_shard(root, mesh=mesh, reshard_after_forward=True, ignored_params=vectors)
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
            # An empty batch uses no row of the head.
            module.set_reduce_scatter_unused_params(True)


def whole(tensor: Tensor) -> Tensor:
    """The full tensor on the CPU; for a shard, all ranks must ask for it at the same time."""
    found: Any = tensor.detach()
    return (found.full_tensor() if isinstance(found, DTensor) else found).cpu()


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    """The model's full state dict on the CPU; weights that are tied stay one tensor. All ranks must ask."""
    state: dict[str, Tensor] = model.state_dict(keep_vars=True)
    gathered = {id(tensor): whole(tensor) for tensor in {id(tensor): tensor for tensor in state.values()}.values()}
    return {name: gathered[id(tensor)] for name, tensor in state.items()}


def placed_like(parameter: Tensor, tensor: Tensor) -> Tensor:
    """`tensor`, the same on every rank, where and as `parameter` lies: its shard, or all of it."""
    value = tensor.to(parameter.device)
    if isinstance(parameter, DTensor) and tensor.shape == parameter.shape:
        return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
    return value


def _decoder_layers(model: PreTrainedModel) -> list[nn.Module]:
    """The list of layers that every decoder has, found by its length."""
    causal: Any = model
    count = int(causal.config.get_text_config().num_hidden_layers)
    for module in causal.base_model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return list(module)
    return []


def _gradient(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def _squares(tensors: list[Tensor]) -> float:
    return float(sum(norm.double() ** 2 for norm in torch._foreach_norm(tensors))) if tensors else 0.0


# One token that predicts nothing: a forward and backward pass whose gradients are all 0.
_EMPTY = PackedBatch(
    input_ids=torch.zeros(1, 1, dtype=torch.long),
    position_ids=torch.zeros(1, 1, dtype=torch.long),
    branches=None,
    predictors=torch.zeros(0, dtype=torch.long),
    targets=torch.zeros(0, dtype=torch.long),
    temperatures=torch.zeros(0),
    order=[],
    lengths=[],
)
