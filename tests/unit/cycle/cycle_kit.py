"""A domain small enough to think through: nodes, plugins that do one thing, and a cycle to drive.

The plugins are real ones, written for tests as a user would write his own; nothing of the product is replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from multisched.config.plugins import base_profile, plugin_registry
from multisched.cycle.classes.cache import ClassCache
from multisched.cycle.results import NO_PAUSE, Attempt, Pause, RemoteRequest, Result
from multisched.cycle.scheduling_cycle import SchedulingCycle
from multisched.cycle.waiting_pods import WaitingPodTable
from multisched.framework.context import PluginContext
from multisched.framework.dependency import Dependency
from multisched.framework.node_view import Codes, Rows, Scores
from multisched.framework.points import CycleView, PermitResult, Plugin, QueuedPod
from multisched.framework.ports import Binder, BindReply, BindRequest
from multisched.framework.reasons import ReasonTable
from multisched.framework.registry import BuiltPlugin, Factory, PluginSet, PluginUse, build_profile
from multisched.framework.runner import PluginFailure, Runner
from multisched.framework.status import SUCCESS, Code, Status
from multisched.framework.step_budget import UNLIMITED, StepBudget
from multisched.framework.traits import Traits
from multisched.model.objects import Node, Pod
from multisched.shell.removals import Removals
from multisched.state.cluster_cache import ClusterCache
from multisched.state.domain_rows import DomainRows
from multisched.state.nominator import Nominator

IN_TREE_USED = {
    "NodeUnschedulable": 1,
    "NodeName": 1,
    "TaintToleration": 3,
    "NodeAffinity": 2,
    "NodePorts": 1,
    "NodeResourcesFit": 1,
    "NodeResourcesBalancedAllocation": 1,
    "ImageLocality": 1,
}


class ByName:
    """QueueSort and Bind, which every profile needs."""

    name = "ByName"

    def sort_key(self, entry: QueuedPod) -> tuple[Any, ...]:
        return (entry.pod.name,)

    async def bind(self, binder: Binder, request: BindRequest, *, timeout_s: float) -> BindReply | None:
        return await binder.post(request, timeout_s=timeout_s)


class FilterBy:
    """Filter by a rule on (pod, node name): an empty reason passes."""

    def __init__(
        self,
        name: str,
        rule: Callable[[Pod, str], str],
        *,
        depends_on: Dependency = Dependency.NODE,
        code: Code = Code.UNSCHEDULABLE,
        sign: Callable[[Pod], Hashable] = lambda pod: (),
    ) -> None:
        self.name = name
        self.depends_on = depends_on
        self.reasons = ReasonTable(name)
        self.asked: list[list[str]] = []
        if code is Code.ERROR:
            self.traits = Traits(may_fail=True)
        self.sign = sign
        self._rule = rule
        self._code = code

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        names = [cycle.nodes.node(row).name for row in rows.tolist()]
        self.asked.append(names)
        reasons = (self._rule(pod, name) for name in names)
        codes = (self.reasons.code(self._code, reason) if reason else 0 for reason in reasons)
        return np.fromiter(codes, np.uint8, len(rows))


class ScoreBy:
    """Score by a rule on (pod, node name)."""

    def __init__(
        self,
        name: str,
        rule: Callable[[Pod, str], int],
        *,
        depends_on: Dependency = Dependency.NODE,
        sign: Callable[[Pod], Hashable] = lambda pod: (),
    ) -> None:
        self.name = name
        self.depends_on = depends_on
        self.sign = sign
        self._rule = rule

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        names = (cycle.nodes.node(row).name for row in rows.tolist())
        return np.fromiter((self._rule(pod, name) for name in names), np.int64, len(rows))


class Asks:
    """Has pods named `slow...` wait for an answer that says nothing."""

    name = "Asks"
    depends_on = Dependency.ATTEMPT
    response_timeout_s = 1.0

    def request(self, cycle: CycleView, pod: Pod, rows: Rows) -> object | None:
        return "" if pod.name.startswith("slow") else None

    async def response(self, request: object) -> object:
        raise AssertionError("the test answers")


POINTS = {
    "AddPod",
    "RemovePod",
    "PreEnqueue",
    "Sign",
    "CacheKey",
    "PodSensitivity",
    "CatchUp",
    "Health",
    "Metrics",
    "Request",
    "Response",
    "Choose",
}
POINTS |= {"PreFilter", "Filter", "PostFilter", "PreScore", "Score", "NormalizeScore", "Reserve", "Unreserve", "Permit"}
POINTS |= {"PreBindPreFlight", "PreBind", "Bind", "PostBind"}
"""What operators know the places by where plugins are called: labels of metrics, words of failures."""


@dataclass
class Heard:
    """A plugin observer that keeps the failures, and who was timed at which points."""

    failures: list[tuple[str, str, str]] = field(default_factory=list)
    timed: set[tuple[str, str]] = field(default_factory=set)

    def plugin_ran(self, plugin: str, point: str, seconds: float) -> None:
        """Times are of no interest here, but that they are some."""
        assert seconds >= 0
        assert point in POINTS
        self.timed.add((plugin, point))

    def plugin_failed(self, plugin: str, point: str, error: BaseException | str) -> None:
        assert point in POINTS
        self.failures.append((plugin, point, str(error)))


class Domain:
    """One domain over a cache of its own."""

    def __init__(
        self,
        *nodes: Node,
        plugins: Sequence[Plugin] = (),
        weights: Mapping[str, int] | None = None,
        in_tree: Sequence[str] = ("NodeResourcesFit",),
        args: Mapping[str, Mapping[str, Any]] | None = None,
        factories: Sequence[Factory] = (),
        profile: str = "",
        seed: int = 0,
        cache: ClusterCache | None = None,
        selects: Callable[[Node], bool] = lambda node: node.labels.get("domain") != "other",
        steps: StepBudget = UNLIMITED,
    ) -> None:
        """`args`: of plugins of `in_tree`.

        `factories`: of plugins that are built with the domain's own context. `profile`: a shipped one, as it is, in place of
        `in_tree` and what every profile needs. `cache`: of another domain, whose neighbour this one is."""
        self.cache = cache if cache is not None else ClusterCache()
        self.waiting = WaitingPodTable()
        self.rows = DomainRows("test", selects)
        self.cache.add_domain(self.rows)
        self.nominator = Nominator()
        self.removals = Removals(self.cache)
        self.heard = Heard()
        self.seed = seed
        self.steps = steps
        weighted = {**IN_TREE_USED, **(weights or {})}
        context = PluginContext(
            "test",
            self.cache.nodes,
            self.waiting,
            self.cache.ledgers,
            self.cache.objects,
            nominations=self.nominator,
            gangs=self.cache.gangs,
            victims=self.removals,
        )
        registry = plugin_registry()
        own = [*plugins, *(make(context) for make in factories)]
        if profile:
            shipped = list(build_profile(base_profile(profile), registry, context).built)
        else:
            own.append(ByName())
            shipped = [
                BuiltPlugin(registry.build(use, context), use)
                for use in (PluginUse(name, weighted.get(name, 1), (args or {}).get(name, {})) for name in in_tree)
            ]
        uses = [BuiltPlugin(p, PluginUse(p.name, weighted.get(p.name, 1))) for p in own]
        self.plugins = PluginSet([*shipped, *uses])
        self.runner = Runner(self.heard, lambda: 0.0)
        self.cycle = self.fresh_cycle()
        for node in nodes:
            self.cache.set_node(node)

    def fresh_cycle(self) -> SchedulingCycle:
        """A cycle over the same cache that has seen nothing yet."""
        return SchedulingCycle(
            self.plugins,
            self.runner,
            self.cache,
            self.rows,
            self.nominator,
            seed=self.seed,
            budget=self.steps,
        )

    def fresh_classes(self) -> ClassCache:
        return ClassCache(self.plugins, self.runner, self.cache.nodes, self.rows)

    def row(self, name: str) -> int:
        row = self.cache.nodes.row_of(name)
        assert row is not None
        return row

    def schedule(self, pod: Pod, attempt: int = 1, cycle: SchedulingCycle | None = None) -> Result:
        """One attempt of a pod about which nobody asks outside."""
        running = (cycle or self.cycle).attempt(QueuedPod(pod, 0.0, attempt))
        try:
            asked = next(running)
        except StopIteration as ended:
            result: Result = ended.value
            return result
        raise AssertionError(f"the cycle asks {asked}")


def finished(running: Attempt) -> Result:
    """Continues an attempt after each of its pauses; returns its result."""
    while True:
        try:
            running.send(NO_PAUSE)
        except StopIteration as ended:
            result: Result = ended.value
            return result


@dataclass
class Waiting:
    """An attempt that waits for answers from outside."""

    running: Any
    asked: Sequence[RemoteRequest]

    @classmethod
    def begin(cls, domain: Domain, pod: Pod, attempt: int = 1) -> Waiting:
        running = domain.cycle.attempt(QueuedPod(pod, 0.0, attempt))
        asked = next(running)
        assert not isinstance(asked, Pause), "its steps are limited"
        return cls(running, asked)

    def answer(self, answers: Mapping[str, object | PluginFailure]) -> Result:
        try:
            asked = self.running.send(answers)
        except StopIteration as ended:
            result: Result = ended.value
            return result
        raise AssertionError(f"the cycle asks again: {asked}")


class Reserves:
    """Reserve and Permit with a given answer; keeps what was called."""

    def __init__(
        self, name: str, calls: list[str], *, reserve: Status = SUCCESS, permit: PermitResult | None = None
    ) -> None:
        self.name = name
        self._calls = calls
        self._reserve = reserve
        self._permit = permit or PermitResult(SUCCESS)

    def reserve(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        self._calls.append(f"reserve {self.name}")
        return self._reserve

    def unreserve(self, cycle: CycleView, pod: Pod, node: str) -> None:
        self._calls.append(f"unreserve {self.name}")

    def permit(self, cycle: CycleView, pod: Pod, node: str) -> PermitResult:
        return self._permit
