"""What the agent sees of the retrieved passages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

from agent_system.retrieval.types import Passage

ObservationForm = Literal["json", "json_unicode", "plain"]
NOTHING_FOUND = "No search results found."


def render(passages: Sequence[Passage], form: ObservationForm) -> str:
    """The passages, best first, between ``<information>`` tags.

    Forms:
        json: verl-agent's, on which the published checkpoints were trained: a JSON object in one line, with escaped
            line breaks and quotes and ``\\uXXXX`` for every letter outside ASCII.
        json_unicode: the same, but letters stay letters.
        plain: Search-R1's own form, as readable text.
    """
    if form == "plain":
        documents = [f"Doc {n}(Title: {p.title}) {p.text}" for n, p in enumerate(passages, start=1)]
        return f"<information>{chr(10).join(documents) or NOTHING_FOUND}</information>"
    listed = "".join(f"Doc {n}: {p.contents.strip()}\n" for n, p in enumerate(passages, start=1))
    result = json.dumps({"result": listed or NOTHING_FOUND}, ensure_ascii=form == "json")
    return f"<information>{result}</information>"
