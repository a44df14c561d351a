from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import ValidationError

from rsipo.problems import UserError
from rsipo.settings import AdvantageSettings, AlgorithmSettings, CheckSettings, MethodSettings, SkillSettings


def test_defaults_are_the_papers():
    assert CheckSettings(max_turns=50).model_dump() == {
        "alpha": 0.5,
        "max_turns": 50,
        "eta": 0.1,
        "kappa": 2.0,
        "omega_max": 2.0,
        "rho": 0.2,
        "format_reward": 0.0,
        "num_rollouts": 8,
        "num_replays": 4,
    }
    assert (SkillSettings().rewrite_temperature, SkillSettings().temperature, SkillSettings().max_tokens) == (
        0.3,
        0,
        4096,
    )
    assert (MethodSettings().opsd_coefficient, MethodSettings().gate_sharpness) == (0.01, 5.0)
    assert AdvantageSettings().model_dump() == {"group_by": "turn", "statistics": "reward", "std_floor": 0.0}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_turns": 50, "alhpa": 1}, "check.alhpa: unknown setting (did you mean 'alpha'?)"),
        ({"max_turns": 50, "zzz": 1}, "check.zzz: unknown setting (known: alpha, eta,"),
        ({}, "check.max_turns: Field required"),
        ({"max_turns": 0}, "check.max_turns: Input should be greater than or equal to 1 (given: 0)"),
        ({"max_turns": 50, "eta": 0}, "check.eta: Input should be greater than 0 (given: 0)"),
        ({"max_turns": 50, "eta": 1.5}, "check.eta: Input should be less than or equal to 1 (given: 1.5)"),
        ({"max_turns": 50, "kappa": float("nan")}, "check.kappa:"),
        (
            {"max_turns": 50, "rho": -1, "alpha": 2},
            "check.alpha: Input should be less than or equal to 1 (given: 2); check.rho:",
        ),
    ],
)
def test_bad_values_are_one_line(values, message):
    with pytest.raises(UserError) as caught:
        CheckSettings.parse(values, where="check")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_settings_are_frozen_and_closed():
    settings = CheckSettings(max_turns=50)
    with pytest.raises(ValidationError):
        settings.alpha = 0.1
    with pytest.raises(ValidationError):
        CheckSettings(max_turns=50, alhpa=0.1)


GRPO = {"teacher_context": "none", "distillation": "none", "trust": "one", "skill_reward": "none"}


@pytest.mark.parametrize(
    ("values", "needs_skills", "needs_check"),
    [
        ({}, True, True),
        (GRPO, False, False),
        ({"trust": "one", "skill_reward": "none"}, True, False),
        ({"trust": "one"}, True, True),
        ({"skill_reward": "none"}, True, True),
        (GRPO | {"skill_reward": "replay_gain"}, False, True),
    ],
    ids=["rsipo", "grpo", "seed", "no trust", "no evolution", "skills alone"],
)
def test_methods_need_what_they_use(values, needs_skills, needs_check):
    method = MethodSettings(**values)
    assert (method.needs_skills, method.needs_check) == (needs_skills, needs_check)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"teacher_context": "none"}, "method: distillation='gated' needs a teacher: set teacher_context='own_skill'"),
        ({"distillation": "none"}, "method: trust='shrunk_gain' weights nothing without distillation: set trust='one'"),
        ({"trust": "half"}, "method.trust: Input should be 'one' or 'shrunk_gain' (given: 'half')"),
    ],
)
def test_methods_that_cannot_be(values, message):
    with pytest.raises(UserError) as caught:
        MethodSettings.parse(values, where="method")
    assert str(caught.value) == message


def test_odd_groups_only_without_a_check():
    odd = CheckSettings(max_turns=50, num_rollouts=5)
    assert AlgorithmSettings(check=odd, method=MethodSettings(**GRPO)).check.num_rollouts == 5
    with pytest.raises(UserError, match=r"num_rollouts=5 cannot be split .* use an even number"):
        AlgorithmSettings.parse({"check": odd}, where="algorithm")


def test_the_core_imports_neither_torch_nor_ray():
    modules = (
        "rsipo.settings rsipo.estimators rsipo.split rsipo.skills rsipo.prompts rsipo.audit.verify verl_ext.advantage"
    )
    code = f"import sys, importlib\nfor m in '{modules}'.split(): importlib.import_module(m)\n"
    code += "print([m for m in ('torch', 'ray', 'verl', 'transformers', 'hydra') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
