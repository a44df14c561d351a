"""Key/value storage of a running batch whose rows come and go.

All rows end at the same column, so a decoding step writes one slice and attention reads one view, without copying or
padding again. A row of length ``l`` occupies the columns ``[end - l, end)`` of its slot; live rows fill the slots
``0 .. rows - 1``. To the model this looks like an ordinary left-padded batch::

    slot 0   . . . a a a a a a |
    slot 1   . . . . . b b b b |      columns [low, end) are live, "." is masked
    slot 2   . . c c c c c c c |
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

# Columns of room behind the longest row when buffers are laid out again; one relayout pays for at least so many steps.
_MIN_ROOM = 32


class _WindowLayer(CacheLayerMixin):
    """One attention layer's keys and values, each [slots, heads, columns, head_dim]."""

    is_sliding = False
    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, window: KVWindow, keys: torch.Tensor, values: torch.Tensor):
        super().__init__()
        self._window = window
        self.keys, self.values = keys, values
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing is lazy: the window lays the buffers out."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the step's column ``[rows, heads, 1, head_dim]`` and return views of all live columns."""
        rows, low, end = len(self._window), self._window.low, self._window.end
        self.keys[:rows, :, end : end + 1] = key_states
        self.values[:rows, :, end : end + 1] = value_states
        return self.keys[:rows, :, low : end + 1], self.values[:rows, :, low : end + 1]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        return self._window.end - self._window.low

    def get_max_cache_shape(self) -> int:
        return -1


class KVWindow:
    """The layers' buffers plus where each row begins. Not thread-safe.

    Attributes:
        end: the column the next token is written to.
        low: the first live column, i.e. the beginning of the longest row.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all rows and free the buffers."""
        self.end = self.low = 0
        self._starts: list[int] = []
        self._layers: list[_WindowLayer] = []
        self._starts_column = torch.empty(0, 1, dtype=torch.long)

    def __len__(self) -> int:
        return len(self._starts)

    def admit(self, prefilled: Sequence[tuple[torch.Tensor, torch.Tensor]], lengths: list[int]) -> None:
        """Append the rows of a left-padded prefill.

        Args:
            prefilled: every layer's keys and values, each [m, heads, P, head_dim].
            lengths: of the m rows, the longest P.
        """
        rows, new, width = len(self), len(lengths), max(lengths)
        if not self._layers:
            self._layers = [_WindowLayer(self, keys[:0, :, :0], values[:0, :, :0]) for keys, values in prefilled]
        self._make_room(rows + new, width)
        for layer, (keys, values) in zip(self._layers, prefilled, strict=True):
            layer.keys[rows : rows + new, :, self.end - width : self.end] = keys
            layer.values[rows : rows + new, :, self.end - width : self.end] = values
        self._starts += [self.end - length for length in lengths]
        self._rows_changed()

    def drop(self, rows: set[int]) -> list[tuple[int, int]]:
        """Remove rows; the last rows move into the holes. Returns the moves as (to, from) for parallel bookkeeping."""
        kept = len(self) - len(rows)
        holes = sorted(row for row in rows if row < kept)
        movers = [row for row in range(kept, len(self)) if row not in rows]
        if holes:
            to_rows, from_rows = torch.tensor(holes), torch.tensor(movers)
            for layer in self._layers:
                for buffer in (layer.keys, layer.values):
                    live = buffer[:, :, self.low : self.end]
                    live.index_copy_(0, to_rows, live.index_select(0, from_rows))
        moves = list(zip(holes, movers, strict=True))
        for to, origin in moves:
            self._starts[to] = self._starts[origin]
        del self._starts[kept:]
        self._rows_changed()
        return moves

    def scrub(self) -> None:
        """Zero everything outside the live rows: masked columns have weight 0, and 0 * NaN would still be NaN."""
        for layer in self._layers:
            for buffer in (layer.keys, layer.values):
                buffer[len(self) :] = 0
                for row, start in enumerate(self._starts):
                    buffer[row, :, :start] = 0

    def step_inputs(self) -> tuple[Cache, torch.Tensor, torch.Tensor]:
        """What a forward pass of one new token per row needs.

        Returns:
            The cache to write to; the attention mask, bool [rows, low..end]; the position ids, int64 [rows, 1].
        """
        if self._layers[0].keys.shape[2] == self.end:
            self._relayout(self._layers[0].keys.shape[0], self.end - self.low)
        mask = torch.arange(self.low, self.end + 1) >= self._starts_column
        return Cache(layers=list(self._layers)), mask, self.end - self._starts_column

    def advance(self) -> None:
        """The forward pass is done: its column belongs to the rows."""
        self.end += 1

    def _rows_changed(self) -> None:
        self.low = min(self._starts, default=self.end)
        self._starts_column = torch.tensor(self._starts, dtype=torch.long).unsqueeze(1)

    def _make_room(self, rows: int, width: int) -> None:
        slots, columns = self._layers[0].keys.shape[0], self._layers[0].keys.shape[2]
        if rows > slots or width > self.end or self.end > columns:
            self._relayout(max(rows, min(2 * slots, rows + 16)), max(width, self.end - self.low))

    def _relayout(self, slots: int, width: int) -> None:
        """Fresh buffers in which the live rows end at column ``width``, followed by room for new tokens."""
        rows, live = len(self), self.end - self.low
        columns = width + max(_MIN_ROOM, width // 4)

        def moved(old: torch.Tensor) -> torch.Tensor:
            fresh = old.new_zeros(slots, old.shape[1], columns, old.shape[3])
            fresh[:rows, :, width - live : width] = old[:rows, :, self.low : self.end]
            return fresh

        for layer in self._layers:
            layer.keys, layer.values = moved(layer.keys), moved(layer.values)
        shift = width - self.end
        self._starts = [start + shift for start in self._starts]
        self.end = width
        self._rows_changed()
