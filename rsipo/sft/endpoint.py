"""Which external LLM writes the skills, and what it may cost: the variables ``RSIPO_ANNOTATOR_*``."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from pydantic import Field, SecretStr, field_validator

from rsipo.problems import UserError
from rsipo.settings import Settings

PREFIX = "RSIPO_ANNOTATOR_"


class Endpoint(Settings):
    """An OpenAI-compatible endpoint. Every field is the variable ``RSIPO_ANNOTATOR_<FIELD>``; an empty one is not set."""

    base_url: str
    """Up to and with ``/v1``; ``/chat/completions`` is appended."""
    model: str = Field(min_length=1)
    api_key: SecretStr = SecretStr("")
    """Sent as a bearer token; none is sent where it is empty."""
    temperature: float = Field(default=0.0, ge=0)
    max_tokens: int = Field(default=4096, ge=1)
    """Most tokens of one response."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """JSON object that is merged into every request, such as ``{"thinking": {"type": "disabled"}}``."""
    concurrency: int = Field(default=8, ge=1)
    """Requests at once."""
    timeout: float = Field(default=300.0, gt=0)
    """Seconds for one attempt, from the request to the last byte of the response."""
    attempts: int = Field(default=8, ge=1)
    """Tries per request."""
    backoff: float = Field(default=1.0, ge=0)
    """Seconds; the wait before the n-th try is random, up to this times 2^(n-1), and never over a minute."""
    longest_wait: float = Field(default=600.0, gt=0)
    """Seconds; a server that asks for a longer wait has refused."""
    budget_tokens: int | None = Field(default=None, ge=1)
    """Prompt and completion tokens in all; None: no limit."""
    budget_money: float | None = Field(default=None, gt=0)
    """In the currency of the prices; None: no limit."""
    input_price: float = Field(default=0.0, ge=0)
    """Of a million prompt tokens."""
    output_price: float = Field(default=0.0, ge=0)
    """Of a million completion tokens."""

    @field_validator("base_url")
    @classmethod
    def _address(cls, url: str) -> str:
        if not url.startswith(("http://", "https://")):
            raise ValueError("an address such as https://HOST/v1 is wanted")
        return url.rstrip("/").removesuffix("/chat/completions")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Endpoint:
        """Read the variables.

        Raises:
            UserError: one is missing or makes no sense; it is named.
        """
        variables = os.environ if environment is None else environment
        values: dict[str, Any] = {
            name: text for name in cls.model_fields if (text := variables.get(PREFIX + name.upper(), "").strip())
        }
        for name in ("base_url", "model"):
            if name not in values:
                raise UserError(
                    f"{PREFIX}{name.upper()} is not set: put the endpoint of the external LLM into .env "
                    "(see .env.example), or take --annotator offline"
                )
        if "extra" in values:
            try:
                values["extra"] = json.loads(values["extra"])
            except ValueError as error:
                raise UserError(f"{PREFIX}EXTRA is not JSON: {error}") from error
        endpoint = cls.parse(values, where=PREFIX.lower().rstrip("_"))
        if endpoint.budget_money is not None and not (endpoint.input_price or endpoint.output_price):
            raise UserError(
                f"{PREFIX}BUDGET_MONEY needs {PREFIX}INPUT_PRICE and {PREFIX}OUTPUT_PRICE, per million tokens"
            )
        return endpoint
