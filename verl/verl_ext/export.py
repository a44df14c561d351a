"""The policy in a sharded checkpoint, as whole tensors and as a Hugging Face folder.

veRL's merger knows how ranks and device meshes cut the weights; this module is its only user. The merger itself always
rounds to bfloat16, so its parts are used and not its command.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate import init_empty_weights
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoTokenizer
from verl.model_merger.base_model_merger import ModelMergerConfig
from verl.model_merger.fsdp_model_merger import FSDPModelMerger, merge_non_dtensor_shards
from verl.utils.transformers_compat import drop_tied_target_keys

from verl_ext.errors import last_line

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: Every architecture has it, and it needs no further package.
ATTENTION = "eager"
_MAX_SHARD_SIZE = "5GB"
_NOT_TOKENIZER = {"config.json", "generation_config.json"}
_LOADED_FROM = ("is_local", "local_files_only", "name_or_path")  # how the tokenizer was loaded in training


class ExportError(Exception):
    """A checkpoint cannot be merged. The message names the file and the remedy."""


class ShardedPolicy:
    """The policy in the ``actor`` folder of a checkpoint, written by any number of FSDP2 ranks.

    The shards are mapped, not read: a tensor takes memory only while it is merged.

    Args:
        actor: ``global_step_N/actor``.

    Raises:
        ExportError: it is no FSDP checkpoint, a rank's file is missing or unreadable, ranks disagree, or it has adapters.
    """

    def __init__(self, actor: Path) -> None:
        self.actor = actor
        self.settings_folder = actor / "huggingface"
        if not (self.settings_folder / "config.json").is_file():
            raise ExportError(f"{actor} has no huggingface/config.json: it is no checkpoint of an FSDP policy")
        settings = ModelMergerConfig(
            operation="merge", backend="fsdp", local_dir=str(actor), hf_model_config_path=str(self.settings_folder)
        )
        try:
            self._merger = FSDPModelMerger(settings)
        except (OSError, ValueError, KeyError) as error:
            raise ExportError(f"{self.settings_folder / 'config.json'} cannot be used ({last_line(error)})") from None
        try:
            self.world_size = int(self._merger._get_world_size())
        except (OSError, ValueError, TypeError) as error:
            raise ExportError(f"{actor / 'fsdp_config.json'} does not say how many ranks wrote it ({error})") from None
        paths = [actor / f"model_world_size_{self.world_size}_rank_{rank}.pt" for rank in range(self.world_size)]
        if missing := [path for path in paths if not path.is_file()]:
            raise ExportError(
                f"{missing[0]} is missing: {len(missing)} of {self.world_size} ranks' weights are not in this folder; "
                "copy the files of all nodes together, or take another checkpoint"
            )
        first = _map(paths[0])
        mesh, names = self._merger._extract_device_mesh_info(first, self.world_size)
        try:
            shards, self._mesh_shape = self._merger._calculate_shard_configuration(mesh, names)
        except AssertionError as error:
            raise ExportError(f"{actor}: veRL cannot merge this layout ({error})") from None
        # With replicas (ddp x fsdp) the first ranks hold one whole copy.
        self._shards = [first, *(_map(path) for path in paths[1:shards])]
        for path, shard in zip(paths, self._shards, strict=False):
            if shard.keys() != first.keys():
                raise ExportError(f"{path} holds other weights than {paths[0].name}: the files are of different models")
        if adapters := [name for name in first if "lora_" in name]:
            raise ExportError(f"{actor} has adapters ({adapters[0]}): only checkpoints of whole models are exported")

    def size(self, dtype: torch.dtype) -> int:
        """Bytes of all weights in ``dtype``."""
        return sum(tensor.numel() for tensor in self._shards[0].values()) * dtype.itemsize

    @property
    def names(self) -> list[str]:
        """The weights' names, sorted."""
        return sorted(self._shards[0])

    def tensors(self, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        """Every weight, whole, on the host; floating-point ones rounded to ``dtype``.

        Raises:
            ExportError: the shards do not make up the whole tensor.
        """
        for name in self.names:
            yield name, self._whole(name, dtype)

    def build(self, dtype: torch.dtype, progress: Callable[[int, int], None] | None = None) -> PreTrainedModel:
        """The model as it was trained, in evaluation mode, with weights rounded to ``dtype``. One copy in memory.

        Args:
            progress: called with the weights merged and their number.

        Raises:
            ExportError: the weights do not fit the configuration.
        """
        config = AutoConfig.from_pretrained(self.settings_folder, local_files_only=True)
        with init_empty_weights():
            model = self._merger.get_transformers_auto_model_class().from_config(
                config, dtype=dtype, attn_implementation=ATTENTION
            )
        weights: dict[str, torch.Tensor] = {}
        for name, tensor in self.tensors(dtype):
            weights[name] = tensor
            if progress:
                progress(len(weights), len(self.names))
        drop_tied_target_keys(weights, model, config)
        try:
            result = model.load_state_dict(weights, strict=False, assign=True)
        except RuntimeError as error:  # shapes
            raise ExportError(f"{self.actor}: the weights do not fit config.json: {last_line(error)}") from None
        model.tie_weights()
        missing = [name for name, parameter in model.named_parameters() if parameter.is_meta]
        if odd := [*result.unexpected_keys, *missing]:
            raise ExportError(f"{self.actor}: the weights do not fit config.json, the first that differs is {odd[0]}")
        return self._merger.patch_model_generation_config(model).eval()

    def write(self, model: PreTrainedModel, folder: Path) -> None:
        """Write ``model`` (of ``build``) with generation configuration, tokenizer and chat template as trained with."""
        if not (self.settings_folder / "generation_config.json").is_file():
            # The one made from config.json may name another end of a response than the policy was trained with.
            tokenizer = AutoTokenizer.from_pretrained(self.settings_folder, local_files_only=True)
            model.generation_config.eos_token_id = tokenizer.eos_token_id
            model.generation_config.pad_token_id = tokenizer.pad_token_id
        model.save_pretrained(folder, max_shard_size=_MAX_SHARD_SIZE)
        for path in sorted(self.settings_folder.iterdir()):
            if path.is_file() and path.name not in _NOT_TOKENIZER and path.suffix not in (".safetensors", ".bin"):
                shutil.copyfile(path, folder / path.name)
        settings = folder / "tokenizer_config.json"
        if settings.is_file():
            values: dict[str, Any] = json.loads(settings.read_text(encoding="utf-8"))
            kept = {key: value for key, value in values.items() if key not in _LOADED_FROM}
            settings.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    def _whole(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        parts: list[Any] = [shard[name] for shard in self._shards]
        if not isinstance(parts[0], DTensor):
            try:
                return _rounded(merge_non_dtensor_shards(name, parts), dtype)
            except ValueError as error:
                raise ExportError(f"{self.actor}: {error}") from None
        with torch.no_grad():
            local = [_rounded(part.to_local(), dtype) for part in parts]
        whole = self._merger._merge_by_placement(local, parts[0].placements[-1])
        if whole.shape != parts[0].shape:
            raise ExportError(
                f"{self.actor}: {name} has shape {list(parts[0].shape)}, its {len(parts)} shards make {list(whole.shape)}"
            )
        return whole


def _rounded(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _map(path: Path) -> dict[str, torch.Tensor]:
    """A rank's state dict, mapped into memory. Tensors only: nothing in the file is executed."""
    logging.getLogger("torch.distributed.device_mesh").setLevel(logging.ERROR)  # that there are no process groups here
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # zip, pickle and file errors have no common base
        raise ExportError(f"{path} cannot be read ({last_line(error)}); take another checkpoint") from error
    return dict(state)
