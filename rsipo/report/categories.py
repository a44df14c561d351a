"""What a skill is about, by keyword: Procedure, Format, Recovery (the paper's Figure 5). The categories overlap."""

from __future__ import annotations

import re

CATEGORIES: dict[str, re.Pattern[str]] = {
    # Two numbered steps in any style ("1." and "2)", "Step 1" and "Step 2"), or steps counted in words.
    "procedure": re.compile(
        r"(?:^|\s|\()(?:step\s*)?1[.):]\s.*?(?:\s|\()(?:step\s*)?2[.):]\s"
        r"|\bstep\s+(?:1|one)\b.*?\bstep\s+(?:2|two)\b"
        r"|\bfirst(?:ly)?\b.*?\b(?:second(?:ly)?|then|next|finally)\b",
        re.IGNORECASE | re.DOTALL,
    ),
    "format": re.compile(
        r"\b(?:syntax|format(?:s|ted|ting)?|admissible|verbatim|well-formed)\b"
        r"|\b(?:valid|invalid|exact|correct|available|allowed|listed) (?:action|command)s?\b"
        r"|\b(?:action|command) (?:string|template|phrasing|wording)s?\b"
        r"|</?(?:action|think|search|answer)>|\b(?:action|search|answer) tags?\b",
        re.IGNORECASE,
    ),
    "recovery": re.compile(
        r"\bnothing happen(?:s|ed)\b|\b(?:has|have|had|with) no effect\b"
        r"|\bno (?:useful |relevant )?results?\b|\b(?:does|did) not (?:work|change)\b"
        r"|\b(?:retry|try again|recover(?:y|s|ed)?|backtrack)\b|\bif (?:it|this|that|the \w+) fails\b",
        re.IGNORECASE,
    ),
}
"""Category to the pattern that one of its skills contains somewhere."""


def categories_of(skill: str) -> set[str]:
    """The categories a skill belongs to; none, one or several."""
    return {name for name, pattern in CATEGORIES.items() if pattern.search(skill)}
