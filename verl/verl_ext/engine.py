"""veRL's FSDP2 engine on the CPU platform."""

from __future__ import annotations

import warnings

import torch

with warnings.catch_warnings():
    # veRL warns once for every engine that is not installed.
    warnings.filterwarnings("ignore", message=".*engine is not available.*")
    from verl.workers.engine import EngineRegistry, FSDPEngineWithLMHead


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
