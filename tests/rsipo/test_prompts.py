from __future__ import annotations

import pytest

from rsipo.prompts import ANALYSIS_PROMPT_VERSION, AnalysisPromptTooLong, analysis_messages, fit_analysis_messages
from rsipo.settings import SkillSettings
from rsipo.skills import read_skill


def text_of(messages) -> str:
    assert [message["role"] for message in messages] == ["user"]
    return messages[0]["content"]


def test_compact_success_is_exact(make_episode):
    text = text_of(analysis_messages(make_episode(2, impossible=2), benchmark="alfworld", profile="compact"))
    assert text == (
        "Task: put a mug in cabinet\n"
        "You see thing 1.\n> go 1\n"
        "You see thing 2.\n> go 2 (invalid)\n"
        "Result: success\n"
        "Write the procedure. JSON."
    )


def test_compact_failure_is_exact(make_episode):
    episode = make_episode(1, success=False, invalid=1)
    text = text_of(analysis_messages(episode, benchmark="alfworld", profile="compact", repeat_format=True))
    assert text == (
        "Task: put a mug in cabinet\nYou see thing 1.\n> go 1 (invalid)\nResult: failure\nWrite the rule. JSON."
    )


def test_full_shows_task_outcome_and_every_turn(make_episode):
    text = text_of(analysis_messages(make_episode(3, invalid=2, impossible=3), benchmark="alfworld"))
    for number, validity in [(1, "valid"), (2, "invalid: the response broke the format"), (3, "invalid: not possible")]:
        assert f"Observation: You see thing {number}.\nResponse: <think>t{number}</think>\n" in text
        assert f"Action: go {number} ({validity}" in text
    order = [
        "## Task\nput a mug in cabinet",
        "## Outcome\nsuccess after 3 turns",
        "Turn 1",
        "Turn 3",
        "You win.",
        "## What",
    ]
    assert [text.index(part) for part in order] == sorted(text.index(part) for part in order)
    assert "JSON" in text
    assert "search" not in text


def test_instruction_depends_on_the_outcome(make_episode):
    success, failure = (
        text_of(analysis_messages(make_episode(success=outcome), benchmark="alfworld")) for outcome in (True, False)
    )
    assert "reusable procedure" in success
    assert "reusable procedure" not in failure
    assert "would have avoided" in failure
    assert "failure after 3 turns" in failure


def test_search_asks_for_a_general_strategy_that_leaks_nothing(make_episode):
    text = text_of(analysis_messages(make_episode(), benchmark="search"))
    assert "general strategy" in text
    assert "must neither state nor hint at the answer" in text
    assert "must not copy text from the retrieved documents" in text


def test_format_is_repeated_after_the_trajectory_on_request(make_episode):
    once, twice = (
        text_of(analysis_messages(make_episode(), benchmark="search", repeat_format=repeat)) for repeat in (False, True)
    )
    assert once.count('"episode_skill"') == 1
    assert twice.count('"episode_skill"') == 2
    assert twice.rindex('"episode_skill"') > twice.index("Turn 3")


def test_copying_the_format_is_no_valid_skill(make_episode):
    text = text_of(analysis_messages(make_episode(), benchmark="alfworld"))
    assert read_skill(text, finished=True, settings=SkillSettings()).reason == "too_short"


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"benchmark": "alfwrld"}, "did you mean 'alfworld'"),
        ({"benchmark": "search", "profile": "ful"}, "did you mean 'full'"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(make_episode, options, hint):
    with pytest.raises(ValueError, match=hint):
        analysis_messages(make_episode(), **options)


@pytest.mark.parametrize("profile", list(ANALYSIS_PROMPT_VERSION))
def test_fit_drops_the_oldest_detail_first_and_no_more_than_needed(make_episode, profile):
    episode = make_episode(20)

    def words(messages) -> int:
        return len(text_of(messages).split())

    def fit(limit: int) -> str:
        return text_of(
            fit_analysis_messages(episode, max_tokens=limit, count_tokens=words, benchmark="alfworld", profile=profile)
        )

    whole = analysis_messages(episode, benchmark="alfworld", profile=profile)
    assert fit(words(whole)) == text_of(whole)
    least = words(fit_to_nothing(episode, profile, words))
    with pytest.raises(AnalysisPromptTooLong, match=r"skill\.max_prompt_length"):
        fit(least - 1)
    seen = []
    for limit in range(words(whole) - 1, least - 1, -1):
        text = fit(limit)
        assert len(text.split()) <= limit
        assert "put a mug in cabinet" in text
        assert "success" in text
        assert "procedure" in text
        observed = [n for n in range(1, 21) if f"You see thing {n}." in text]
        acted = [n for n in range(1, 21) if f"go {n}\n" in text or f"go {n} (" in text]
        assert observed == list(range(21 - len(observed), 21))
        assert acted == list(range(21 - len(acted), 21))
        assert not observed or len(acted) == 20, "actions go only once all details are gone"
        seen.append((len(observed), len(acted)))
    assert seen[0] == (19, 20)
    assert seen[-1] == (0, 0)
    assert seen == sorted(seen, reverse=True)


def fit_to_nothing(episode, profile, words):
    """The prompt without any turn: the first that fits, from below."""
    for limit in range(1, 10_000):
        try:
            return fit_analysis_messages(
                episode, max_tokens=limit, count_tokens=words, benchmark="alfworld", profile=profile
            )
        except AnalysisPromptTooLong:
            continue
    raise AssertionError("never fits")
