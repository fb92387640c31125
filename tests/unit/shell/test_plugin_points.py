"""Every point of a plugin on a pod's way to its node: what it is handed, what it is called, and who hears of its failure."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Any

import numpy as np
import pytest

from multisched.framework.dependency import Dependency
from multisched.framework.node_view import Codes, Rows, Scores
from multisched.framework.points import CycleView, PermitResult, PreFilterResult
from multisched.framework.ports import Binder, BindReply, BindRequest, PodTruth
from multisched.framework.reasons import ReasonTable
from multisched.framework.sensitivity import PodSensitivity
from multisched.framework.status import SUCCESS, Status
from multisched.model.objects import Pod
from multisched.testing.sim_loop import SimLoop, simulate
from tests.unit.shell.shell_kit import WorkerHarness


class Everywhere:
    """Remembers what it is handed at each point, lets everything pass, and raises at the point it is told to."""

    name = "Everywhere"
    depends_on = Dependency.ATTEMPT

    def __init__(self, fails_at: str = "") -> None:
        self.reasons = ReasonTable(self.name)
        self.handed: dict[str, tuple[object, ...]] = {}
        self._fails_at = fails_at

    def _hear(self, point: str, *handed: object) -> None:
        self.handed[point] = handed
        if point == self._fails_at:
            raise RuntimeError("boom")

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
        self._hear("PreFilter", cycle, pod)
        return PreFilterResult()

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        self._hear("Filter", cycle, pod, rows.tolist())
        return np.zeros(len(rows), np.uint8)

    def pre_score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Status:
        self._hear("PreScore", cycle, pod, rows.tolist())
        return SUCCESS

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        self._hear("Score", cycle, pod, rows.tolist())
        return rows + 7

    def normalize_score(self, cycle: CycleView, pod: Pod, raw: Scores) -> Scores:
        self._hear("NormalizeScore", cycle, pod, raw.tolist())
        return raw

    def reserve(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        self._hear("Reserve", cycle, pod, node)
        return SUCCESS

    def unreserve(self, cycle: CycleView, pod: Pod, node: str) -> None:
        self._hear("Unreserve", cycle, pod, node)

    def permit(self, cycle: CycleView, pod: Pod, node: str) -> PermitResult:
        self._hear("Permit", cycle, pod, node)
        return PermitResult(SUCCESS)

    def pre_bind_pre_flight(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        self._hear("PreBindPreFlight", cycle, pod, node)
        return SUCCESS

    async def pre_bind(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        self._hear("PreBind", cycle, pod, node)
        return SUCCESS

    async def bind(self, binder: Binder, request: BindRequest, *, timeout_s: float) -> BindReply | None:
        self._hear("Bind", binder, request, timeout_s)
        return None

    def post_bind(self, cycle: CycleView, pod: Pod, node: str) -> None:
        self._hear("PostBind", cycle, pod, node)


class Asking(Everywhere):
    """Asks outside besides."""

    response_timeout_s = 1.0

    def request(self, cycle: CycleView, pod: Pod, rows: Rows) -> object | None:
        self._hear("Request", cycle, pod, rows.tolist())
        return pod.name

    async def response(self, request: object) -> object:
        self._hear("Response", request)
        return "fine"


class Signing(Everywhere):
    """Its answers are kept, as long as its cache key stands."""

    depends_on = Dependency.CACHE_KEY

    def sign(self, pod: Pod) -> Hashable | None:
        self._hear("Sign", pod)
        return pod.spec.priority

    def cache_key(self, cycle: CycleView, pod: Pod) -> Hashable | None:
        self._hear("CacheKey", cycle, pod)
        return 1

    def pod_sensitivity(self, cycle: CycleView, pod: Pod) -> PodSensitivity:
        self._hear("PodSensitivity", cycle, pod)
        return PodSensitivity("any", lambda other: True)


class Refuser:
    """PreBind that does not succeed, after the others'."""

    name = "Refuser"

    async def pre_bind(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        return Status.unschedulable("not there")


def one_pod(*plugins: Any, promised: str = "", for_s: float = 0.5) -> WorkerHarness:
    """A pod sent its way over two nodes, and so much later. `promised`: a node that another pod counts on."""
    loop, found = SimLoop(seed=3), list[WorkerHarness]()

    async def main() -> None:
        harness = WorkerHarness(loop, "a", "b", plugins=plugins)
        found.append(harness)
        harness.desk.truths = [PodTruth("uid-p", "", is_deleting=False, is_gated=False)] * 2
        if promised:
            harness.see_pod("ahead", priority=9, status={"nominatedNodeName": promised})
            harness.worker.queue.remove("uid-ahead")
        async with harness.at_work():
            harness.see_pod("p")
            await asyncio.sleep(for_s)

    simulate(main(), loop)
    return found[0]


IN_CYCLE = ("PreFilter", "Filter", "PreScore", "Score", "NormalizeScore", "Reserve", "Permit")
AFTER_PERMIT = ("PreBindPreFlight", "PreBind", "Bind")
CASES = [
    *((Everywhere, point) for point in (*IN_CYCLE, *AFTER_PERMIT)),
    *((Asking, point) for point in ("Request", "Response", "Filter", "Score", "NormalizeScore")),
    *((Signing, point) for point in ("Sign", "CacheKey", "Filter", "Score", "NormalizeScore")),
]


@pytest.mark.parametrize(("kind", "point"), CASES)
def test_raising_plugin_is_reported_with_its_extension_point(kind: type[Everywhere], point: str) -> None:
    harness = one_pod(kind(point), for_s=5.5 if point == "Bind" else 0.5)  # a binding may have been sent
    where = point if point == "PreBindPreFlight" else f"{point} plugin"
    assert harness.told("p") == [f'running {where} "Everywhere": RuntimeError: boom']
    assert harness.domain.heard.failures == [("Everywhere", point, "boom")]
    assert ("attempt", "scheduled" if point in AFTER_PERMIT else "error") in harness.desk.ends
    assert (harness.desk.posts, harness.node_of("p")) == ([], None)


def test_pod_sensitivity_is_called_only_with_nominated_pods_ahead() -> None:
    harness = one_pod(Signing("PodSensitivity"), promised="a")
    assert harness.told("p") == ['running PodSensitivity plugin "Everywhere": RuntimeError: boom']
    assert harness.domain.heard.failures == [("Everywhere", "PodSensitivity", "boom")]
    assert one_pod(Signing("PodSensitivity")).told("p") == []


def test_failed_unreserve_is_logged_and_the_pod_keeps_its_cancel_reason() -> None:
    harness = one_pod(Everywhere("Unreserve"), Refuser())
    assert harness.domain.heard.failures == [("Everywhere", "Unreserve", "boom")]
    assert harness.told("p") == ["0/1 nodes are available: 1 not there."]


@pytest.mark.parametrize(
    ("kind", "more"), [(Everywhere, set()), (Asking, {"Request"}), (Signing, {"Sign", "CacheKey", "PodSensitivity"})]
)
def test_extension_point_durations_are_reported_by_name(kind: type[Everywhere], more: set[str]) -> None:
    harness = one_pod(kind(), promised="a")
    found = {point for plugin, point in harness.domain.heard.timed if plugin == "Everywhere"}
    assert found == {*IN_CYCLE, "PreBindPreFlight", *more}


@pytest.mark.parametrize("kind", [Everywhere, Asking, Signing])
def test_every_extension_point_gets_pod_rows_and_node(kind: type[Everywhere]) -> None:
    plugin = kind()
    harness = one_pod(plugin, promised="a")
    (node,) = (node for name, node in harness.desk.posts if name == "p")
    entry = harness.cache.placed("uid-p")
    assert entry is not None
    handed = plugin.handed
    assert isinstance(handed["Bind"][1], BindRequest)
    assert (handed["Bind"][0], handed["Bind"][2]) == (harness.desk, 5.0)
    for point in ("PreFilter", "Filter", "PreScore", "Score", "NormalizeScore"):
        view, pod, *rest = handed[point]
        assert isinstance(view, CycleView)
        assert (point, pod) == (point, entry.pod)
        assert rest in ([], [[0]], [[0, 1]], [[7, 8]])
    for point in ("Reserve", "Permit", "PreBindPreFlight", "PreBind", "PostBind"):
        view, *rest = handed[point]
        assert isinstance(view, CycleView)
        assert (point, rest) == (point, [entry.pod, node])
