"""Play games with a small policy in this process, without Ray or veRL: for measuring a warm start, and for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase, Qwen2ForCausalLM

from agent_system.environments.alfworld.projection import INVALID_ACTION
from agent_system.environments.base import Action, Environment, EnvironmentSpec, PromptContext, Task
from agent_system.rollout.types import Episode
from rsipo.embedded.demonstrations import take_turn
from rsipo.embedded.formats import locations
from rsipo.prompts import Messages, analysis_messages
from rsipo.settings import SkillSettings
from rsipo.skills import read_skill


@dataclass(slots=True)
class Policy:
    """A model with its tokenizer. ``batch`` prompts are decoded at a time, left-padded."""

    model: Qwen2ForCausalLM
    tokenizer: PreTrainedTokenizerBase
    batch: int = 64

    @classmethod
    def load(cls, folder: Path) -> Policy:
        """From a model folder, in float32 whatever the file holds."""
        model = Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        return cls(model, AutoTokenizer.from_pretrained(folder))

    @torch.no_grad()
    def answer(self, prompts: Sequence[Messages], *, temperature: float, max_tokens: int) -> list[str | None]:
        """The answers, decoded; None where generation did not end by itself."""
        answers: list[str | None] = []
        for start in range(0, len(prompts), self.batch):
            answers += self._answer(prompts[start : start + self.batch], temperature, max_tokens)
        return answers

    def _answer(self, prompts: Sequence[Messages], temperature: float, max_tokens: int) -> list[str | None]:
        self.tokenizer.padding_side = "left"
        texts = [self.tokenizer.apply_chat_template(p, tokenize=False, add_generation_prompt=True) for p in prompts]
        inputs = self.tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        sampling = GenerationConfig(
            max_new_tokens=max_tokens,
            do_sample=temperature > 0,
            temperature=temperature if temperature > 0 else 1.0,
            top_k=0,
            eos_token_id=self.tokenizer.eos_token_id,
            pad_token_id=self.tokenizer.pad_token_id,
        )
        output = self.model.generate(**inputs, generation_config=sampling)  # type: ignore[misc]
        answers = output[:, inputs["input_ids"].shape[1] :]
        finished = (answers == self.tokenizer.eos_token_id).any(dim=1).tolist()
        decoded = self.tokenizer.batch_decode(answers, skip_special_tokens=True)
        return [text if done else None for text, done in zip(decoded, finished, strict=True)]


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a policy does on a set of games; every field but ``games`` is a share between 0 and 1.

    ``student`` and ``teacher`` are success rates; the teacher plays with the skill it wrote from its own student
    episode, and a game without a valid skill counts as the student's result.
    """

    games: int
    student: float
    teacher: float
    valid_format: float
    inadmissible: float
    valid_skill: float
    location_skill: float


def play_games(
    policy: Policy,
    spec: EnvironmentSpec,
    tasks: Sequence[Task],
    *,
    skills: Sequence[str | None] | None = None,
    temperature: float = 1.0,
    max_tokens: int = 32,
) -> list[Episode]:
    """Play all games in lockstep, each with its skill where it has one."""
    environments = [spec.make() for _ in tasks]
    episodes = play_in_lockstep(
        policy,
        spec,
        environments,
        tasks,
        skills=skills,
        temperature=temperature,
        max_tokens=max_tokens,
        played=lambda action: action.text if action.valid else INVALID_ACTION,
        is_over=lambda action, episode: episode.success,
    )
    for environment in environments:
        environment.close()
    return episodes


def play_in_lockstep(
    policy: Policy,
    spec: EnvironmentSpec,
    environments: Sequence[Environment],
    tasks: Sequence[Task],
    *,
    skills: Sequence[str | None] | None,
    temperature: float,
    max_tokens: int,
    played: Callable[[Action], str],
    is_over: Callable[[str, Episode], bool],
) -> list[Episode]:
    """One episode of each task, a turn of all of them at a time.

    ``played`` is what the environment gets of an action, ``is_over`` says of it and its episode whether that ended.
    """
    skills = skills or [None] * len(tasks)
    contexts: list[PromptContext] = []
    episodes: list[Episode] = []
    for environment, task in zip(environments, tasks, strict=True):
        start = environment.reset(task)
        contexts.append(PromptContext(start.instruction, start.observation))
        episodes.append(Episode(task.task_id, 0, "ok", False, [], start.fingerprint, start.instruction))
    running = list(range(len(tasks)))
    for _ in range(spec.max_turns):
        prompts = [spec.messages(contexts[i], skill=skills[i]) for i in running]
        answers = policy.answer(prompts, temperature=temperature, max_tokens=max_tokens)
        asked, running = running, []
        for i, answer in zip(asked, answers, strict=True):
            action = spec.project(answer or "")
            text = played(action)
            contexts[i] = take_turn(environments[i], episodes[i], contexts[i], text, answer or "", valid=action.valid)
            if not is_over(text, episodes[i]):
                running.append(i)
    return episodes


def write_skills(
    policy: Policy,
    episodes: Sequence[Episode],
    *,
    benchmark: str = "alfworld",
    temperature: float = 0.3,
    max_tokens: int = 96,
) -> list[str | None]:
    """The skill the policy writes from each episode; None where it is not valid."""
    prompts = [analysis_messages(e, benchmark=benchmark, profile="compact") for e in episodes]
    answers = policy.answer(prompts, temperature=temperature, max_tokens=max_tokens)
    skills = [read_skill(a or "", finished=a is not None, settings=SkillSettings()) for a in answers]
    return [skill.text if skill.valid else None for skill in skills]


def guided_successes(
    student: Sequence[Episode],
    skills: Sequence[str | None],
    tasks: Sequence[Task],
    play: Callable[[Sequence[Task], Sequence[str | None]], Sequence[Episode]],
) -> list[bool]:
    """Success of each task's own skill, played by ``play(tasks, skills)``; without a valid skill the student's."""
    chosen = [i for i, skill in enumerate(skills) if skill]
    guided = [episode.success for episode in student]
    for i, episode in zip(chosen, play([tasks[i] for i in chosen], [skills[i] for i in chosen]), strict=True):
        guided[i] = episode.success
    return guided


def measure(
    policy: Policy,
    spec: EnvironmentSpec,
    tasks: Sequence[Task],
    *,
    temperature: float = 1.0,
    skill_temperature: float = 0.3,
    seed: int = 0,
) -> Measurement:
    """Play, write skills, play again with them. Reproducible for a seed."""
    torch.manual_seed(seed)
    student = play_games(policy, spec, tasks, temperature=temperature)
    skills = write_skills(policy, student, temperature=skill_temperature)
    guided = guided_successes(
        student,
        skills,
        tasks,
        lambda some, with_skills: play_games(policy, spec, some, skills=with_skills, temperature=temperature),
    )
    turns = [turn for episode in student for turn in episode.turns]
    return Measurement(
        games=len(tasks),
        student=fmean(episode.success for episode in student),
        teacher=fmean(guided),
        valid_format=fmean(turn.action_valid for turn in turns),
        inadmissible=fmean(not turn.admissible for turn in turns),
        valid_skill=fmean(bool(skill) for skill in skills),
        location_skill=fmean(bool(locations(skill or "")) for skill in skills),
    )
