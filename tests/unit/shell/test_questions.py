"""Questions to a running program: why a pod waits, and what would mend the cluster. Copies of it answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import pytest

from domains.forecast.forecast import Forecast
from multisched import config
from multisched.framework.repair import RepairAsked, RepairRefusedError
from multisched.observe.explain_view import ExplainQuery, NotExplainedError
from multisched.shell.explain_source import ProgramExplanations
from multisched.shell.repair_source import RepairPlans
from tests.unit.domains.builders import make_profiles
from tests.unit.shell.program_kit import CONFIGURATION, Cluster, play

T = TypeVar("T")


async def at_once(work: Callable[[], T]) -> T:
    """Threads answer in real time, which virtual time does not wait for."""
    return work()


async def two_nodes(cluster: Cluster) -> None:
    await cluster.add_node("a", cpu="2")
    await cluster.add_node("b", cpu="4")
    await cluster.add_pod("stands", cpu="100m")
    await cluster.add_pod("late", cpu="8")


def test_a_pod_that_waits_is_told_why_on_which_node_and_what_would_help() -> None:
    async def scene(cluster: Cluster) -> None:
        explanations = ProgramExplanations(cluster.program, config.parse(CONFIGURATION, "test"), in_thread=at_once)
        asked = ExplainQuery("default", "late")
        view = await explanations.pod(asked)
        assert view.attempts[0].outcome == "refused"
        assert view.now is None, "what it was told last is as good as a trial"
        assert view.fixes is None

        fixed = await explanations.pod(ExplainQuery("default", "late", with_fixes=True))
        assert [fix.kind for fix in fixed.fixes or ()][:1] == ["request"]
        there = await explanations.pod(ExplainQuery("default", "late", node="b"))
        assert there.on_node is not None
        assert there.now is None
        assert there.on_node.text == "It does not take the pod: NodeResourcesFit says Insufficient cpu."
        with pytest.raises(NotExplainedError, match="node c is not known here"):
            await explanations.pod(ExplainQuery("default", "late", node="c"))

    play(scene, prepare=two_nodes)


def test_a_plan_is_made_on_a_copy_of_what_stands() -> None:
    async def scene(cluster: Cluster) -> None:
        (forecast,) = [
            built.plugin
            for worker in cluster.program.router.workers()
            for built in worker.plugins.built
            if isinstance(built.plugin, Forecast)
        ]
        forecast.adopt(make_profiles(("cpu",), web={"cpu": np.full(168, 0.1)}))
        plans = RepairPlans(cluster.program, config.parse(CONFIGURATION, "test"), in_thread=at_once)
        plan = await plans.plan(RepairAsked(domain="forecast"))
        assert (plan.domain, plan.nodes, plan.pods, plan.moves) == ("forecast", 2, 1, ())
        with pytest.raises(RepairRefusedError, match="did you mean forecast"):
            await plans.plan(RepairAsked(domain="forcast"))

    play(scene, prepare=two_nodes)
