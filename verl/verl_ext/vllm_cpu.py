"""vLLM on a CPU as a rollout engine whose weights change. vLLM imports this module in its worker before it builds the model.

vLLM's CPU build packs the weight of every linear layer into an opaque form and drops the plain one. New weights could
not be written into it, and a tied output layer would go on with the old ones. Here the plain weights stay, so that
veRL's transfer works as it does on a GPU.
"""

from __future__ import annotations

import torch
import vllm.model_executor.layers.utils as layers

from verl_ext.vllm_receiver import WeightReceiver

__all__ = ["CPUWeightReceiver"]


def _keep_plain_weight(layer: torch.nn.Module, remove_weight: bool) -> None:
    layer.cpu_linear = torch.nn.functional.linear  # type: ignore[assignment]


if not hasattr(layers, "dispatch_cpu_unquantized_gemm"):
    raise ImportError("this vLLM packs its CPU weights elsewhere than 0.24 does: adapt verl_ext.vllm_cpu")
layers.dispatch_cpu_unquantized_gemm = _keep_plain_weight


class CPUWeightReceiver(WeightReceiver):
    """The receiver of a CPU worker; what makes it special happened when this module was imported."""
