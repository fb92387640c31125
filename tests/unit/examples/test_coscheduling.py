"""The coscheduling example: all members go, or none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from multisched.framework.points import CycleView, EnqueueExtensions, PermitPlugin, ReservePlugin
from multisched.framework.registry import extension_points
from multisched.framework.status import Code
from multisched.model.objects import Pod
from multisched.state.cluster_cache import ClusterCache
from multisched.testing.builders import make_context, make_node, make_pod, make_view
from tests.examples.coscheduling import GROUP, SIZE, Coscheduling


class HeldPods:
    """Pods at Permit, as a domain keeps them: a rejected pod is unreserved and forgotten at once."""

    def __init__(self, cache: ClusterCache) -> None:
        self.cache = cache
        self.plugin: Coscheduling | None = None
        self.held: dict[str, Pod] = {}
        self.bound: list[str] = []
        self.rejected: dict[str, str] = {}

    def waiting(self) -> Sequence[Pod]:
        return list(self.held.values())

    def allow(self, uid: str, plugin: str) -> bool:
        pod = self.held.pop(uid, None)
        if pod is not None:
            self.bound.append(pod.name)
        return pod is not None

    def reject(self, uid: str, plugin: str, reason: str) -> bool:
        pod = self.held.pop(uid, None)
        if pod is None:
            return False
        self.rejected[pod.name] = reason
        assert self.plugin is not None
        self.plugin.unreserve(make_view(self.cache), pod, "n")
        self.cache.forget(uid)
        return True


class Bench:
    def __init__(self) -> None:
        self.cache = ClusterCache()
        self.cache.set_node(make_node("n"))
        self.held = HeldPods(self.cache)
        self.plugin = Coscheduling({"timeoutSeconds": 7}, make_context(self.cache, waiting=self.held))
        self.held.plugin = self.plugin

    @property
    def view(self) -> CycleView:
        return make_view(self.cache)

    def arrives(self, pod: Pod) -> Code:
        """The pod is assumed and comes to Permit."""
        self.cache.assume(pod, 0)
        result = self.plugin.permit(self.view, pod, "n")
        if result.status.code is Code.WAIT:
            assert result.timeout_s == 7
            self.held.held[pod.uid] = pod
        elif result.status.is_success:
            self.held.bound.append(pod.name)
        return result.status.code


def member(name: str, group: str = "g", size: str = "3", namespace: str = "default") -> Pod:
    return make_pod(name, labels={GROUP: group, SIZE: size}, namespace=namespace)


def test_plugin_fits_in_sixty_lines_and_implements_reserve_and_permit() -> None:
    plugin = Bench().plugin
    source = Path(__file__).parents[2] / "examples" / "coscheduling.py"

    assert len(source.read_text().splitlines()) <= 60
    assert isinstance(plugin, PermitPlugin | ReservePlugin | EnqueueExtensions)
    assert extension_points(plugin) == ["Reserve", "Permit"]


def test_members_wait_until_the_group_is_complete_and_are_then_allowed() -> None:
    bench = Bench()

    assert [bench.arrives(member(name)) for name in "abc"] == [Code.WAIT, Code.WAIT, Code.SUCCESS]
    assert sorted(bench.held.bound) == ["a", "b", "c"]


def test_pods_without_a_group_are_allowed() -> None:
    bench = Bench()
    bench.arrives(member("a"))

    assert bench.arrives(make_pod("lonely")) is Code.SUCCESS
    assert list(bench.held.held) == ["uid-a"]


def test_groups_of_other_names_and_namespaces_do_not_count() -> None:
    bench = Bench()
    pods = [member("a", size="2"), member("b", group="h", size="2"), member("c", size="2", namespace="other")]

    assert [bench.arrives(pod) for pod in pods] == [Code.WAIT] * 3


def test_timeout_of_one_member_rejects_all_and_releases_their_nodes() -> None:
    bench = Bench()
    stranger = member("z", group="other")
    for pod in (member("a"), member("b"), stranger):
        bench.arrives(pod)

    bench.held.reject("uid-a", "the framework", "timed out")

    assert bench.held.rejected == {"a": "timed out", "b": "member a of the group gave up"}
    assert list(bench.held.held) == [stranger.uid]
    assert [entry.pod.name for entry in bench.cache] == ["z"]


def test_timed_out_group_can_complete_later() -> None:
    bench = Bench()
    bench.arrives(member("a"))
    bench.held.reject("uid-a", "the framework", "timed out")

    assert [bench.arrives(member(name)) for name in "abc"] == [Code.WAIT, Code.WAIT, Code.SUCCESS]


def test_replacement_in_a_bound_group_is_allowed_at_once() -> None:
    bench = Bench()
    for name in "abc":
        bench.arrives(member(name))
    bench.cache.remove("uid-b")

    assert bench.arrives(member("d")) is Code.SUCCESS


@pytest.mark.parametrize("size", ["", "three", "-3", "10000000000"])
def test_invalid_size_is_reported(size: str) -> None:
    bench = Bench()
    result = bench.plugin.permit(bench.view, member("a", size=size), "n")

    assert result.status.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE
    assert SIZE in result.status.message
