"""The cost of one step of a simulated process."""

from __future__ import annotations

from contextlib import closing
from types import SimpleNamespace
from typing import Any

from multisched.testing.builders import make_node, make_pod
from multisched.testing.sim_loop import SimLoop
from tests.kit.checkers.process.classes import ClassChecker
from tests.kit.checkers.process.step_cost import StepCost
from tests.unit.cycle.cycle_kit import Domain


def cost_of_a_class(*, is_judged: bool) -> int:
    """Returns the cost of one class. `is_judged`: the class is also compared with a fresh evaluation."""
    domain = Domain(*(make_node(f"n{at}", cpu_milli=1000) for at in range(4)))
    broken: list[str] = []
    if is_judged:
        worker: Any = SimpleNamespace(cycle=domain.cycle, plugins=domain.plugins, runner=domain.runner)
        others: Any = SimpleNamespace(compare=lambda *asked: None, is_in_trial=False)
        ClassChecker(worker, domain.cache.nodes, domain.rows, others, others, broken.append).checks_all = True
    with closing(SimLoop(seed=1)) as loop:
        cost = StepCost(loop, broken.append)
        cost.follow(domain.runner)
        domain.cycle.classes.find(make_pod("p", cpu_milli=500), 1)
    assert broken == []
    return cost.highest


def test_plugin_calls_of_a_checker_are_not_counted_as_step_cost() -> None:
    assert cost_of_a_class(is_judged=True) == cost_of_a_class(is_judged=False) > 0
