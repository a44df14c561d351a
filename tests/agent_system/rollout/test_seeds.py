from __future__ import annotations

import subprocess
import sys

import pytest

from agent_system.rollout.seeds import derive_seed


def test_is_a_fixed_31_bit_function_of_its_parts():
    assert derive_seed(0, 1, "task", "student", 3) == derive_seed(0, 1, "task", "student", 3)
    assert all(0 <= derive_seed(0, number) < 2**31 for number in range(200))


def test_tells_types_order_and_boundaries_apart():
    names = [(1,), ("1",), (1, 1), (11,), ("a", "b"), ("ab",), ("b", "a"), ("a", "b", "")]
    assert len({derive_seed(*name) for name in names}) == len(names)


def test_does_not_depend_on_the_hash_seed():
    code = "from agent_system.rollout.seeds import derive_seed; print(derive_seed(0, 'käse'))"
    printed = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert printed == {f"{derive_seed(0, 'käse')}\n"}


def test_refuses_parts_without_a_stable_encoding():
    with pytest.raises(TypeError, match=r"1\.5"):
        derive_seed(0, 1.5)
