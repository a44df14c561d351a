"""Replacing a model's weights as one unit: collected on the side, checked as a whole, then swapped in."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn


class WeightUpdateError(RuntimeError):
    """A weight update was refused; the old weights stay in place."""


class WeightStage:
    """Collects one full set of weights for ``model``; nothing is visible to it before ``commit``.

    A new ``update_id`` replaces an unfinished collection, so a half-received update dies quietly.
    """

    def __init__(self, model: nn.Module):
        self._current = model.state_dict()
        self._staged: dict[str, torch.Tensor] = {}
        self._update_id: str | None = None

    def add(self, update_id: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """Collect some of the tensors (any float dtype; they must not change afterwards).

        Raises:
            WeightUpdateError: a name the model does not have, a wrong shape, or a name sent twice.
        """
        if update_id != self._update_id:
            self._update_id, self._staged = update_id, {}
        for name, tensor in tensors.items():
            current = self._current.get(name)
            if current is None:
                raise WeightUpdateError(f"unexpected weight {name!r}: the served model has no such parameter")
            if tensor.shape != current.shape:
                raise WeightUpdateError(
                    f"weight {name!r} has shape {list(tensor.shape)}, the served model expects {list(current.shape)}"
                )
            if name in self._staged:
                raise WeightUpdateError(f"weight {name!r} was sent twice in one update")
            self._staged[name] = tensor

    def check(self, update_id: str) -> None:
        """Make sure the update is complete. Tied weights need one of their names, and must agree when several are sent.

        Raises:
            WeightUpdateError: nothing staged under this id, missing names, or tied weights that differ.
        """
        if update_id != self._update_id:
            raise WeightUpdateError("the update to commit is not the one that was staged")
        sent: dict[int, str] = {}
        for name, tensor in self._staged.items():
            first = sent.setdefault(self._current[name].data_ptr(), name)
            if first != name and not torch.equal(self._staged[first], tensor):
                raise WeightUpdateError(f"weights {first!r} and {name!r} are tied in the served model but differ")
        missing = [name for name, tensor in self._current.items() if tensor.data_ptr() not in sent]
        if missing:
            raise WeightUpdateError(
                f"{len(missing)} of {len(self._current)} weights are missing, the first is {missing[0]!r}"
            )

    @torch.no_grad()
    def commit(self, update_id: str) -> None:
        """Check, then copy into the model in its own dtype. Raises as ``check`` does, before anything is changed."""
        self.check(update_id)
        for name, tensor in self._staged.items():
            self._current[name].copy_(tensor)
        self.discard()

    def discard(self) -> None:
        """Forget what was collected."""
        self._update_id, self._staged = None, {}
