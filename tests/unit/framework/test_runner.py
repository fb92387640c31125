"""The runner: a plugin's exception, nonsense or refusal becomes a Status, and the observer hears of failures."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from multisched.framework.cycle_state import CycleState
from multisched.framework.points import CycleView, PermitResult, PostFilterResult, PreFilterResult
from multisched.framework.runner import SAMPLED_EVERY, PluginFailure, Runner, in_full, sentence
from multisched.framework.status import SKIP, SUCCESS, Code, Status
from multisched.state.node_table import NodeTable
from multisched.testing.builders import make_pod

VIEW, POD, ROWS = CycleView(NodeTable(), CycleState()), make_pod("p"), np.arange(3)
REFUSED = Status.unschedulable("no")


class Ears:
    def __init__(self) -> None:
        self.ran: list[tuple[str, str, float]] = []
        self.failed: list[tuple[str, str, str]] = []

    def plugin_ran(self, plugin: str, point: str, seconds: float) -> None:
        self.ran.append((plugin, point, seconds))

    def plugin_failed(self, plugin: str, point: str, error: BaseException | str) -> None:
        self.failed.append((plugin, point, str(error)))


def answering(answer: Any) -> Any:
    """A plugin that gives this answer, or raises it, at every point."""

    def asked(*args: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    points = "pre_filter filter post_filter pre_score score normalize_score reserve unreserve permit"
    return SimpleNamespace(name="P", **dict.fromkeys(points.split(), asked))


RAISING: dict[str, Callable[[Runner, Any], Any]] = {
    "PreFilter": lambda runner, plugin: runner.pre_filter(plugin, VIEW, POD),
    "Filter": lambda runner, plugin: runner.filter(plugin, VIEW, POD, ROWS),
    "PreScore": lambda runner, plugin: runner.pre_score(plugin, VIEW, POD, ROWS),
    "Score": lambda runner, plugin: runner.score(plugin, VIEW, POD, ROWS),
    "NormalizeScore": lambda runner, plugin: runner.normalize(plugin, VIEW, POD, np.arange(3)),
}
"""Points whose failure ends the attempt by an exception that the cycle catches."""

ANSWERING: dict[str, Callable[[Runner, Any], Status]] = {
    "PostFilter": lambda runner, plugin: runner.post_filter(plugin, VIEW, POD, SimpleNamespace()).status,
    "Reserve": lambda runner, plugin: runner.reserve(plugin, VIEW, POD, "n"),
    "Permit": lambda runner, plugin: runner.permit(plugin, VIEW, POD, "n").status,
}
"""Points whose failure is an Error status: something is to be undone, or the pod is refused anyway."""

NONSENSE = [None, 0, "yes", np.zeros(2, np.uint8), np.zeros(3, np.float32), np.zeros((3, 1), np.int64)]


@pytest.mark.parametrize("answer", [RuntimeError("boom"), *NONSENSE])
@pytest.mark.parametrize("point", RAISING)
def test_failure_names_point_and_plugin(point: str, answer: Any) -> None:
    ears = Ears()
    with pytest.raises(PluginFailure) as failed:
        RAISING[point](Runner(ears, lambda: 0.0), answering(answer))

    status = failed.value.status
    assert (status.code, status.plugin) == (Code.ERROR, "P")
    assert status.message.startswith(f'running {point} plugin "P": ')
    assert [told[:2] for told in ears.failed] == [("P", point)]


@pytest.mark.parametrize("attempt", [1, 2])
def test_nested_failure_keeps_its_plugin(attempt: int) -> None:
    """DefaultPreemption asks filters and ledgers in its dry runs. `attempt`: calls of the first are timed."""
    ears, failure = Ears(), PluginFailure(Status.error("running Ledger").by("Other"))
    runner = Runner(ears, lambda: 0.0)
    for _ in range(attempt):
        runner.begin_attempt()
    status = runner.post_filter(answering(failure), VIEW, POD, SimpleNamespace()).status
    assert (status.plugin, status.message) == ("Other", "running Ledger")
    assert ears.failed == []


@pytest.mark.parametrize("answer", [RuntimeError("boom"), *NONSENSE])
@pytest.mark.parametrize("point", ANSWERING)
def test_failure_after_reserve_is_a_status(point: str, answer: Any) -> None:
    ears = Ears()
    status = ANSWERING[point](Runner(ears, lambda: 0.0), answering(answer))

    assert (status.code, status.plugin) == (Code.ERROR, "P")
    assert status.message.startswith(f'running {point} plugin "P": ')
    assert len(ears.failed) == 1


def test_unreserve_cannot_fail() -> None:
    ears = Ears()
    Runner(ears, lambda: 0.0).unreserve(answering(RuntimeError("boom")), VIEW, POD, "n")
    assert ears.failed == [("P", "Unreserve", "boom")]


def test_refusals_have_the_plugin_name() -> None:
    runner = Runner(Ears(), lambda: 0.0)
    assert runner.reserve(answering(REFUSED), VIEW, POD, "n") == REFUSED.by("P")
    assert runner.permit(answering(PermitResult(Status(Code.WAIT), 3.0)), VIEW, POD, "n").timeout_s == 3.0
    assert runner.permit(answering(PermitResult(REFUSED)), VIEW, POD, "n").status == REFUSED.by("P")
    assert runner.pre_filter(answering(PreFilterResult(SKIP)), VIEW, POD).status is SKIP
    assert runner.pre_score(answering(SUCCESS), VIEW, POD, ROWS) is SUCCESS
    found = runner.post_filter(answering(PostFilterResult(SUCCESS, "n")), VIEW, POD, SimpleNamespace())
    assert found.nominated_node == "n"


def test_pre_score_may_skip_but_not_refuse() -> None:
    with pytest.raises(PluginFailure) as failed:
        Runner(Ears(), lambda: 0.0).pre_score(answering(REFUSED), VIEW, POD, ROWS)
    assert failed.value.status == Status.error(f'running PreScore plugin "P": {REFUSED.message}').by("P")


def test_error_status_names_the_node_as_upstream() -> None:
    runner, broken = Runner(Ears(), lambda: 0.0), Status.error("odd", "disk")
    for point, result, ask in (
        ("PreFilter", PreFilterResult(broken), lambda p: runner.pre_filter(p, VIEW, POD)),
        ("PreScore", broken, lambda p: runner.pre_score(p, VIEW, POD, ROWS)),
    ):
        with pytest.raises(PluginFailure) as failed:
            ask(answering(result))
        assert failed.value.status == Status.error(f'running {point} plugin "P": odd, disk').by("P")
    told = runner.reserve(answering(broken), VIEW, POD, "n")
    assert told == Status.error('running Reserve plugin "P": odd, disk').by("P")
    told = runner.permit(answering(PermitResult(broken)), VIEW, POD, "n").status
    assert told == Status.error('running Permit plugin "P": odd, disk').by("P")
    assert in_full(answering(None), "PreBind", Status.denied("quota")).is_denied
    assert sentence(answering(None), "AddPod", "odd") == 'running AddPod on PreFilter plugin "P": odd'


@pytest.mark.parametrize("scores", [[0, -1, 5], [0, 101, 5]])
def test_raw_scores_must_be_in_range(scores: list[int]) -> None:
    runner = Runner(Ears(), lambda: 0.0)
    with pytest.raises(PluginFailure, match=r"outside 0\.\.100"):
        runner.normalize(answering(np.array(scores, np.int64)), VIEW, POD, np.arange(3))
    with pytest.raises(PluginFailure, match=r"outside 0\.\.100"):
        runner.check_range(answering(None), np.array(scores, np.int64))


def test_one_attempt_in_ten_is_measured() -> None:
    ears, clock = Ears(), iter(range(1000))
    runner = Runner(ears, lambda: float(next(clock)))
    for _ in range(3 * SAMPLED_EVERY):
        runner.begin_attempt()
        runner.filter(answering(np.zeros(3, np.uint8)), VIEW, POD, ROWS)

    assert ears.ran == [("P", "Filter", 1.0)] * 3


def test_recheck_uses_the_method_of_the_plugin() -> None:
    plugin = answering(np.zeros(3, np.uint8))
    runner = Runner(Ears(), lambda: 0.0)
    assert runner.recheck(plugin, VIEW, POD, ROWS).tolist() == [0, 0, 0]
    plugin.recheck = lambda *args: np.ones(3, np.uint8)
    assert runner.recheck(plugin, VIEW, POD, ROWS).tolist() == [1, 1, 1]
