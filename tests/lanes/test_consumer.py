"""How much the device is given at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.lanes.consumer import most_steps


@pytest.mark.parametrize(("step_s", "steps"), [(0.0, 64), (1e-5, 64), (0.001, 50), (0.02, 2), (0.05, 1), (7.0, 1)])
def test_quick_steps_go_together_and_slow_ones_alone(step_s: float, steps: int) -> None:
    assert most_steps(step_s) == steps


@given(st.floats(0, 1e6))
def test_for_any_duration_a_call_of_several_steps_is_short(step_s: float) -> None:
    steps = most_steps(step_s)
    assert 1 <= steps <= 64
    assert steps == 1 or steps * step_s <= 0.0501
