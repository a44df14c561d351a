"""veRL's FSDP2 engine on the CPU platform."""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F

with warnings.catch_warnings():
    # veRL warns once for every engine that is not installed.
    warnings.filterwarnings("ignore", message=".*engine is not available.*")
    from verl.workers.engine import EngineRegistry, FSDPEngineWithLMHead
    from verl.workers.engine.fsdp import transformer_impl

from verl.utils.device import get_device_name


def label_log_probs(logits: torch.Tensor, labels: torch.Tensor, inplace_backward: bool = True) -> torch.Tensor:
    """Log-probabilities of ``labels`` [...] under ``logits`` [..., V], in the precision of the logits, float32 at least.

    Without flash-attn veRL loops over the tokens, one autograd node each; on a CPU that costs more than the model.
    """
    flat = logits.reshape(-1, logits.shape[-1])
    scores = -F.cross_entropy(flat.float() if flat.dtype.itemsize < 4 else flat, labels.reshape(-1), reduction="none")
    return scores.view(labels.shape)


if get_device_name() == "cpu":
    transformer_impl.logprobs_from_logits = label_log_probs


@EngineRegistry.register(model_type="language_model", backend=["fsdp2"], device="cpu")
class CPUEngine(FSDPEngineWithLMHead):
    """The same engine; only a forward-only (reference) model is built differently."""

    def _build_fsdp_module(self, module: torch.nn.Module) -> torch.nn.Module:
        # veRL offloads a forward-only model to pinned host memory. On a CPU it already lives there, and pinning needs
        # an accelerator, so the module is built as an ordinary one.
        forward_only = self.engine_config.forward_only
        self.engine_config.forward_only = False
        try:
            return super()._build_fsdp_module(module)
        finally:
            self.engine_config.forward_only = forward_only
