"""Logprobs and entropies straight from hidden states: the [tokens, vocabulary] logits exist for one chunk at a time.

The backward pass recomputes a chunk's logits, so memory does not grow with the number of tokens.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from burnish.maths.entropy import logprobs_and_entropy

# Rows of logits that pass through softmax at once on a CPU: small enough for its cache.
_CPU_BLOCK = 64


def head_logprobs(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, temperatures: Tensor, chunk_tokens: int
) -> tuple[Tensor, Tensor]:
    """Logprob of each target and entropy of its distribution, ([T], [T]) float32, with z = (hidden W^T + b) / T.

    hidden: [T, D]; weight: [V, D]; bias: [V] or None; targets, temperatures: [T]. Gradients flow from the logprobs
    into hidden, weight and bias; the entropy is a measurement and carries none.
    """
    apply: Any = _HeadLogprobs.apply
    logprobs, entropy = apply(hidden, weight, bias, targets, temperatures, chunk_tokens)
    return logprobs, entropy


class _HeadLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperatures: Tensor,
        chunk_tokens: int,
    ) -> tuple[Tensor, Tensor]:
        matrix = weight.to(hidden.dtype) if hidden.is_cuda else weight
        tokens = len(targets)
        logprobs = torch.empty(tokens, dtype=torch.float32, device=hidden.device)
        entropy = torch.empty_like(logprobs)
        normalizers = torch.empty_like(logprobs)
        block = _CPU_BLOCK if hidden.device.type == "cpu" else chunk_tokens
        logits = None
        for start in range(0, tokens, chunk_tokens):
            chunk = slice(start, start + chunk_tokens)
            logits = _logits(hidden[chunk], matrix, bias, temperatures[chunk])
            for low in range(0, len(logits), block):
                rows = slice(start + low, start + min(low + block, len(logits)))
                part = logits[low : low + block]
                logprobs[rows], entropy[rows] = logprobs_and_entropy(part, targets[rows])
                chosen = part.gather(-1, targets[rows].unsqueeze(-1)).squeeze(-1)
                normalizers[rows] = chosen - logprobs[rows]
        # One chunk of logits is what the caller allowed anyway: with no other chunk to come, keeping it is free.
        ctx.logits = logits if tokens <= chunk_tokens and ctx.needs_input_grad[0] else None
        ctx.chunk_tokens = chunk_tokens
        ctx.save_for_backward(hidden, weight, bias, targets, temperatures, normalizers)
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logprobs: Tensor, grad_entropy: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, temperatures, normalizers = ctx.saved_tensors
        matrix = weight.to(hidden.dtype) if hidden.is_cuda else weight
        need_hidden, need_weight, need_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.empty_like(hidden) if need_hidden else None
        grad_weight: Tensor | None = None
        grad_bias = torch.zeros_like(bias) if need_bias and bias is not None else None
        for start in range(0, len(targets), ctx.chunk_tokens):
            chunk = slice(start, start + ctx.chunk_tokens)
            logits = ctx.logits
            ctx.logits = None
            if logits is None:
                logits = _logits(hidden[chunk], matrix, bias, temperatures[chunk])
            # d logprob / d z = (onehot(target) - softmax(z)) / T, computed where the logits lie.
            scale = (grad_logprobs[chunk] / temperatures[chunk]).unsqueeze(-1)
            grad_logits = logits.sub_(normalizers[chunk].unsqueeze(-1)).exp_().mul_(-scale)
            grad_logits.scatter_add_(-1, targets[chunk].unsqueeze(-1), scale)
            if grad_bias is not None:
                grad_bias += grad_logits.sum(dim=0)
            grad_logits = grad_logits.to(matrix.dtype)
            if grad_hidden is not None:
                grad_hidden[chunk] = grad_logits @ matrix
            if need_weight:
                grad_weight = _add_product(grad_weight, grad_logits.T, hidden[chunk].to(matrix.dtype))
        return grad_hidden, grad_weight, grad_bias, None, None, None


def _logits(hidden: Tensor, matrix: Tensor, bias: Tensor | None, temperatures: Tensor) -> Tensor:
    """[C, V] float32, divided by the temperatures. Rounding logits to bfloat16 would cost more than the rest does."""
    if matrix.dtype != torch.float32:
        logits = torch.mm(hidden, matrix.T, out_dtype=torch.float32)
    else:
        logits = hidden.float() @ matrix.T
    if bias is not None:
        logits += bias
    return logits.div_(temperatures.unsqueeze(-1))


def _add_product(total: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
    """total + left @ right in float32, in place where there is a total."""
    if right.dtype != torch.float32:
        product = torch.mm(left, right, out_dtype=torch.float32)
        return product if total is None else total.add_(product)
    return left @ right if total is None else total.addmm_(left, right)
