"""GpuTide: which pods it holds back on which nodes, and which pods it keeps from preempting."""

from __future__ import annotations

from typing import Any, cast

import pytest

from domains.gpu.dialects.whole import GPU
from domains.gpu.gpu_ledger import GpuLedger
from domains.gpu.tide.gpu_tide import GpuTide
from domains.gpu.tide.hold_back import OUTSIDE, Limits
from multisched.framework.points import PostFilterResult
from multisched.framework.status import Code
from multisched.model.objects import Pod
from multisched.testing.builders import all_rows, make_cache, make_context, make_node, make_pod, make_view

MODEL = "nvidia.com/gpu.product"
HELD = "held back: inference is expected to need 38 cards"


def pod(name: str, cards: int = 8, **extra: int) -> Pod:
    """A pod; with a name that begins with `chat`, of inference."""
    labels = {"tier": "serving"} if name.startswith("chat") else {}
    return make_pod(name, extra={GPU: cards, **extra} if cards else extra, uid=name, labels=labels)


class Tide:
    """The plugin over an A100 and an H100 node."""

    def __init__(self, limits: Limits | None = None) -> None:
        nodes = [
            make_node(name, extra={GPU: 8}, labels={MODEL: model}) for name, model in (("a", "A100"), ("h", "H100"))
        ]
        self.cache = make_cache(nodes, GpuLedger())
        self.plugin = GpuTide(
            make_context(self.cache), {"inference": {"selector": {"matchLabels": {"tier": "serving"}}}}
        )
        self.view = make_view(self.cache)
        if limits is not None:
            self.plugin.import_state(limits)

    def pre_filter(self, one: Pod) -> tuple[Code, str]:
        status = self.plugin.pre_filter(self.view, one).status
        return status.code, status.message

    def refused(self, one: Pod) -> dict[str, str]:
        """Node -> why the pod is refused there."""
        rows = all_rows(self.cache)
        codes = self.plugin.filter(self.view, one, rows).tolist()
        messages = [self.plugin.reasons.status(code).message for code in codes]
        return dict(zip(("a", "h"), messages, strict=True))


def test_training_is_held_back_everywhere_with_the_reason_of_the_plan() -> None:
    tide = Tide(Limits(0, 4, HELD))
    assert tide.pre_filter(pod("train")) == (Code.UNSCHEDULABLE_AND_UNRESOLVABLE, HELD)
    assert tide.pre_filter(pod("small", 4)) == (Code.SUCCESS, "")
    for other in (pod("chat"), pod("without", 0), pod("mig", 0, **{"nvidia.com/mig-1g.10gb": 1})):
        assert tide.pre_filter(other)[0] is Code.SKIP


def test_nodes_outside_the_tide_take_training_that_is_held_back() -> None:
    tide = Tide(Limits(0, 0, HELD, models=("A100",), has_outside=True))
    assert tide.pre_filter(pod("train"))[0] is Code.SUCCESS
    assert tide.refused(pod("train")) == {"a": OUTSIDE, "h": ""}
    assert tide.refused(pod("chat")) == {"a": "", "h": ""}
    assert tide.plugin.reserve(tide.view, pod("train"), "h").is_success
    assert tide.plugin.reserve(tide.view, pod("train"), "a").message == HELD


def test_pods_that_are_reserved_use_up_the_growth() -> None:
    tide = Tide(Limits(0, 8, HELD))
    assert tide.plugin.reserve(tide.view, pod("first"), "a").is_success
    assert tide.pre_filter(pod("second"))[1] == HELD
    tide.plugin.unreserve(tide.view, pod("first"), "a")
    assert tide.pre_filter(pod("second"))[0] is Code.SUCCESS


def test_cache_key_changes_with_the_answer_only() -> None:
    tide = Tide(Limits(0, 8, HELD))
    before = tide.plugin.cache_key(tide.view, pod("train"))
    tide.plugin.import_state(Limits(9, 9, HELD))
    assert tide.plugin.cache_key(tide.view, pod("train")) == before
    tide.plugin.import_state(Limits(0, 0, HELD))
    assert tide.plugin.cache_key(tide.view, pod("train")) != before
    assert tide.plugin.cache_key(tide.view, pod("chat")) is None


def group_result(tide: Tide, *pods: Pod) -> PostFilterResult:
    search = tide.plugin.post_filter_group(tide.view, pods, cast("Any", None))
    with pytest.raises(StopIteration) as ended:
        next(search)
    found: PostFilterResult = ended.value.value
    return found


def test_inference_with_cards_ends_the_chain_before_preemption() -> None:
    tide, refusals = Tide(), cast("Any", None)
    for one, ends in ((pod("chat"), True), (pod("chat-cpu", 0), False), (pod("train"), False)):
        status = tide.plugin.post_filter(tide.view, one, refusals).status
        assert (status.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE) is ends
        assert bool(status.reasons) is ends
    assert group_result(tide, pod("train"), pod("chat")).status.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE
    assert group_result(tide, pod("train")).status.code is Code.UNSCHEDULABLE
