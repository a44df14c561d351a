"""What the external LLM may cost: a limit on tokens and one on money, never exceeded by what is asked for at once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

_MILLION = 1_000_000


class BudgetSpent(Exception):
    """Nothing more may be asked for. The message says what was spent of what."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one or of many requests. ``estimated``: the server did not say, at least of some."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    estimated: bool = False

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.estimated or other.estimated,
        )

    def __sub__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens - other.prompt_tokens, self.completion_tokens - other.completion_tokens, self.estimated
        )


class Budget:
    """A request reserves the most it can cost, waits while others hold too much, and settles what it did cost.

    Args:
        max_tokens: prompt and completion tokens together; None: no limit.
        max_cost: in the currency of the prices; None: no limit.
        input_price, output_price: per million tokens.
        spent: before, by earlier runs of the same work.
    """

    def __init__(
        self,
        max_tokens: int | None = None,
        max_cost: float | None = None,
        input_price: float = 0.0,
        output_price: float = 0.0,
        spent: Usage | None = None,
    ) -> None:
        self._max_tokens, self._max_cost = max_tokens, max_cost
        self._input_price, self._output_price = input_price, output_price
        self.spent = spent or Usage()
        self._reserved = Usage()
        self._changed = asyncio.Condition()

    def cost(self, usage: Usage) -> float:
        """What tokens cost."""
        return (usage.prompt_tokens * self._input_price + usage.completion_tokens * self._output_price) / _MILLION

    async def reserve(self, most: Usage) -> None:
        """Wait until ``most`` fits beside what is spent and reserved.

        Raises:
            BudgetSpent: it does not fit beside what is spent alone.
        """
        async with self._changed:
            while not self._fits(self.spent + self._reserved + most):
                if not self._fits(self.spent + most):
                    raise BudgetSpent(self._describe())
                await self._changed.wait()
            self._reserved += most

    async def settle(self, reserved: Usage, used: Usage) -> None:
        """Give a reservation back and count what was used of it."""
        async with self._changed:
            self._reserved -= reserved
            self.spent += used
            self._changed.notify_all()

    def _fits(self, usage: Usage) -> bool:
        tokens_fit = self._max_tokens is None or usage.tokens <= self._max_tokens
        return tokens_fit and (self._max_cost is None or self.cost(usage) <= self._max_cost)

    def _describe(self) -> str:
        parts = []
        if self._max_tokens is not None:
            parts.append(f"{self.spent.tokens:,} of {self._max_tokens:,} tokens")
        if self._max_cost is not None:
            parts.append(f"{self.cost(self.spent):.4f} of {self._max_cost:g} in money")
        return " and ".join(parts) + " are spent, and the next request might exceed that"
