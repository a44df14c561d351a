"""``rsipo doctor`` as a whole: what it looks at, its exit status, and that it needs neither torch nor Ray."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rsipo.doctor.command import doctor_command, examine
from rsipo.doctor.findings import Finding
from rsipo.launch import parse_request


def examined(*arguments: str) -> list[Finding]:
    return list(examine(parse_request(arguments)))


def failures(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.what: finding for finding in findings if finding.level == "fail"}


def test_the_embedded_run_is_fine_here(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    findings = examined()
    assert not failures(findings)
    assert {finding.area for finding in findings} == {"software", "machine", "data", "model", "plan"}
    assert all(finding.remedy for finding in findings if finding.level != "ok")
    assert doctor_command([]) == 0
    printed = capsys.readouterr().out
    assert "0 failure(s)" in printed
    assert "is made by the first run" in printed
    assert not (home / "work" / "runs").exists()  # it starts nothing


def test_a_used_run_folder_is_no_failure(home: Path) -> None:
    run = home / "work" / "runs" / "rsipo-tiny-policy-alfworld" / "rsipo"
    run.mkdir(parents=True)
    (run / "metrics.jsonl").touch()
    assert not failures(examined())


def test_what_is_missing_for_eight_gpus_is_said_with_remedies(capsys: pytest.CaptureFixture[str]) -> None:
    findings = failures(examined("alfworld", "Qwen2.5-7B-Instruct"))
    assert {"vllm", "GPU", "train", "folder"} <= findings.keys()
    assert "no model folder 'Qwen2.5-7B-Instruct' under MODELS_ROOT" in findings["folder"].found
    assert all(finding.remedy for finding in findings.values())
    assert doctor_command(["alfworld", "Qwen2.5-7B-Instruct"]) == 1
    printed = capsys.readouterr().out
    assert "KV cache" in printed  # planned with the published sizes, before anything is downloaded


def test_a_model_by_name_on_a_cpu(model: Path, games: Path) -> None:
    small = ["prompt.max_prompt_length=384", "prompt.max_teacher_prompt_length=448", "skill.max_prompt_length=768"]
    small += ["skill.max_tokens=96", "training.tasks_per_step=4", "prompt.max_response_length=32"]
    findings = examined("alfworld", "mine", "hardware=cpu", *small)
    assert not failures(findings)
    model_lines = {finding.what: finding.found for finding in findings if finding.area == "model"}
    assert model_lines["folder"] == str(model)
    assert "Qwen2ForCausalLM" in model_lines["architecture"]


def test_prompts_that_do_not_fit_the_context(model: Path, games: Path) -> None:
    findings = examined("alfworld", "mine", "hardware=cpu", "training.tasks_per_step=4")
    too_long = [finding for finding in findings if finding.area == "plan" and finding.level == "fail"]
    assert any("> context" in finding.found or "<= context 4096" in finding.found for finding in too_long)
    assert all(finding.remedy for finding in too_long)


def test_a_problem_that_only_the_preflight_knows_is_shown_once() -> None:
    findings = examined("logging.trackers=[wandbb]", "env.task_types=[pick_up]", "env.data_root=/nowhere")
    shown = [finding for finding in findings if "unknown tracker 'wandbb'" in finding.found]
    assert [finding.area for finding in shown] == ["preflight"]
    absent = [finding for finding in findings if "/nowhere" in finding.found and finding.level == "fail"]
    assert [(finding.area, finding.what) for finding in absent] == [("data", "train"), ("data", "valid_unseen")]


def test_a_bad_setting_still_lets_the_machine_be_looked_at() -> None:
    findings = examined("training.stepps=3")
    assert "did you mean 'training.steps'" in failures(findings)["configuration"].found
    assert {"machine", "model"} <= {finding.area for finding in findings}


def test_a_retriever_that_is_not_there() -> None:
    findings = failures(examined("search", "Qwen3-1.7B", "env.retriever_urls=['http://127.0.0.1:9']", "hardware=cpu"))
    assert "no retriever: " in findings["retriever"].found
    assert "start_retriever.sh" in findings["retriever"].remedy
    assert {"train", "folder"} <= findings.keys()
    assert not any(finding.area == "preflight" for finding in findings.values())


def test_the_embedded_search_run() -> None:
    findings = examined("search")
    assert not [finding for finding in findings if finding.area in ("data", "machine") and finding.level == "fail"]
    assert "retriever" not in {finding.what for finding in findings}  # it starts its own


_WITHOUT = """
import sys, importlib.abc, importlib.metadata, json
hidden = {"torch", "ray", "verl", "transformers", "tensordict", "vllm", "httpx", "accelerate"}
class Hide(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
class Distributions(importlib.metadata.DistributionFinder):
    pass
sys.meta_path.insert(0, Hide())
real_version, real_find = importlib.metadata.version, importlib.util.find_spec
def version(name):
    if name in hidden:
        raise importlib.metadata.PackageNotFoundError(name)
    return real_version(name)
def find_spec(name, package=None):
    return None if name.split(".")[0] in hidden else real_find(name, package)
importlib.metadata.version, importlib.util.find_spec = version, find_spec
from rsipo.doctor.command import examine
from rsipo.launch import parse_request
print(json.dumps([[f.what, f.level, f.found, f.remedy] for f in examine(parse_request(sys.argv[1:]))]))
"""


def test_without_torch_ray_and_verl_it_says_what_is_missing() -> None:
    """In a process that cannot import them, as after a plain ``pip install``."""
    output = subprocess.run(
        [sys.executable, "-c", _WITHOUT], capture_output=True, text=True, timeout=300, check=True
    ).stdout
    found = {what: (level, text, remedy) for what, level, text, remedy in json.loads(output.splitlines()[-1])}
    for name in ("torch", "ray", "verl", "transformers"):
        assert found[name][:2] == ("fail", "not installed")
        assert "setup.sh" in found[name][2]
    assert found["configuration"][0] == "fail"
    assert "veRL is not installed" in found["configuration"][1]
    assert found["folder"][0] == "ok"
    assert found["tokenizer"][0] == "warn"
    assert found["CPU"][0] in ("ok", "warn")
