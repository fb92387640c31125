"""The documents of the page, of a whole program: overview, decisions, pending pods by reason, nodes, quotas and gangs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import orjson
import pytest

from multisched.framework.leading import Leader, NotLeadingError, NotLedHere
from multisched.framework.views import NoViewError, ViewQuery
from multisched.observe.nodes_view import NodesQuery, NoNodeError
from multisched.observe.overview_view import encode
from multisched.observe.pending_view import PODS_PER_GROUP
from multisched.observe.queue_view import NoDomainError
from multisched.shell.page import overview as overview_module
from multisched.shell.page import pending as pending_module
from multisched.shell.page.nodes import ProgramNodes
from multisched.shell.page.overview import ProgramOverview
from multisched.shell.page.pending import ProgramPending
from multisched.shell.plugin_views import ProgramViews
from multisched.shell.telemetry import ProgramQueues
from tests.integration.plugins.gang_kit import ack, members
from tests.integration.plugins.program_cluster import (
    HEAD,
    ProgramCluster,
    in_virtual_time,
    install_definitions,
    one_domain,
    open_cluster,
)

T = TypeVar("T")
ELSEWHERE = NotLedHere("tests", Leader("other", "https://10.0.0.5:10260"))


class Page:
    """The sources of a page over a cluster; `led_by` is another leader of the domain, if any."""

    def __init__(self, cluster: ProgramCluster) -> None:
        self.led_by: NotLedHere | None = None
        queues = ProgramQueues(cluster.program, "me", self._find)
        self.overview = ProgramOverview(cluster.program, queues, "me", self._find)
        self.pending = ProgramPending(cluster.program, queues, self._find)
        self.nodes = ProgramNodes(cluster.program, queues)
        self._views = ProgramViews(cluster.program, in_thread=_at_once)

    def _find(self, domain: str) -> NotLedHere | None:
        return self.led_by

    async def until(self, ask: Callable[[], Awaitable[T]], holds: Callable[[T], bool]) -> T:
        """Returns the first document for which `holds`, within a minute."""
        for _ in range(12_000):
            if holds(found := await ask()):
                return found
            await asyncio.sleep(0.005)
        raise AssertionError(f"not within a minute: {found}")

    async def view(self, view: str, **options: str) -> Any:
        return orjson.loads(await self._views.document(view, ViewQuery("now", options)))


async def _at_once(work: Callable[[], Any]) -> Any:
    return work()


@asynccontextmanager
async def opened(configuration: str = "", **nodes: str) -> AsyncIterator[tuple[ProgramCluster, Page]]:
    """`nodes`: name -> CPUs."""
    async with open_cluster(configuration or one_domain()) as cluster:
        for name, cpu in nodes.items():
            await cluster.node(name, cpu=cpu)
        yield cluster, Page(cluster)


async def refused(cluster: ProgramCluster, *names: str) -> None:
    await cluster.until(lambda: all((one := cluster.waiting(name)) is not None and bool(one.message) for name in names))


def test_overview_counts_and_tells_decisions_once() -> None:
    async def main() -> None:
        async with opened(n1="4", n2="8") as (cluster, page):
            await cluster.pod("small", cpu="1")
            await cluster.bound("small")
            found = await page.overview.overview()
            [domain] = found.domains
            assert (domain.domain, domain.nodes, domain.bound, domain.is_leading) == ("tests", 2, 1, True)
            assert (domain.latency is not None and domain.latency.pods, domain.bound_per_second) == (1, None)
            [told] = found.decisions
            assert (told.name, told.node) == ("small", "n2")
            assert told.why.startswith("most free resources: NodeResourcesFit")
            assert {"quotas", "gangs"} <= found.views.keys()
            assert encode(await page.overview.overview()) == encode(found), "an idle program has no news"
            await asyncio.sleep(2.0)
            await cluster.pod("large", cpu="400")
            await refused(cluster, "large")
            later = await page.overview.overview()
            assert (later.domains[0].counts["unschedulable"], later.domains[0].bound_per_second) == (1, 0.0)
            assert later.changes > found.changes
            assert [one.name for one in later.decisions] == ["small"]
            assert later.domains[0].unschedulable_by_plugin == {"NodeResourcesFit": 1}

    in_virtual_time(main)


def test_names_are_found_by_a_part_and_equal_ones_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview_module, "NAMES", 2)
    monkeypatch.setattr(overview_module, "FOUND_SHOWN", 2)

    async def main() -> None:
        async with opened(n1="4", n11="8", n2="1") as (cluster, page):
            for name in ("a-web", "a-web-2", "web", "large"):
                await cluster.pod(name, cpu="400" if name == "large" else "100m")
            await cluster.bound("a-web", "a-web-2", "web")
            await refused(cluster, "large")

            found = await page.overview.find("web")
            assert (found.pods, found.pods_total) == ((("default", "web"), ("default", "a-web")), 3)
            assert (found.nodes, found.nodes_total) == ((), 0)
            assert (await page.overview.find("ault/lar")).pods == (("default", "large"),)
            assert (await page.overview.find("n1")).nodes == ("n1", "n11")
            nothing = await page.overview.find("")
            assert (nothing.pods_total, nothing.nodes_total) == (0, 0)
            await cluster.delete("namespaces/default/pods/web")
            found = await page.until(lambda: page.overview.find("web"), lambda one: one.pods_total == 2)
            assert found.pods == (("default", "a-web"), ("default", "a-web-2"))

    in_virtual_time(main)


def test_every_change_of_the_cluster_is_counted_and_rest_is_not() -> None:
    async def main() -> None:
        async with opened(n1="4") as (cluster, page):
            await cluster.pod("small", cpu="1")
            await cluster.pod("large", cpu="400")
            await cluster.bound("small")
            await refused(cluster, "large")

            async def rises_by(change: Awaitable[object]) -> bool:
                before = (await page.overview.overview()).changes
                await change
                await asyncio.sleep(1.0)
                return (await page.overview.overview()).changes > before

            assert not await rises_by(asyncio.sleep(60.0))
            assert await rises_by(cluster.delete("namespaces/default/pods/small")), "a node has more room"
            assert await rises_by(cluster.delete("namespaces/default/pods/large")), "fewer pods wait"
            assert await rises_by(cluster.patch("nodes/n1", {"spec": {"unschedulable": True}}))
            await asyncio.sleep(60.0)
            assert await rises_by(cluster.patch("namespaces/default", {"metadata": {"labels": {"team": "red"}}}))

    in_virtual_time(main)


def test_overview_lists_decisions_of_all_domains_by_time() -> None:
    async def main() -> None:
        async with opened(
            f"{HEAD}domains: [{{name: tests}}, {{name: other, loans: [{{from: tests}}]}}]\n", n1="64"
        ) as (cluster, page):
            for name, domain in (("first", "other"), ("second", "tests"), ("third", "other")):
                await cluster.pod(name, cpu="1", scheduler=f"{domain}-scheduler")
                await cluster.bound(name)
            assert [one.name for one in (await page.overview.overview()).decisions] == ["third", "second", "first"]

    in_virtual_time(main)


def test_overview_tells_few_decisions_of_a_burst_and_lists_all() -> None:
    async def main() -> None:
        async with opened(n1="64") as (cluster, page):
            names = [f"p{number}" for number in range(20)]
            for name in names:
                await cluster.pod(name, cpu="1")
            await cluster.bound(*names)
            assert len((await page.overview.overview()).decisions) == 2
            found = (await page.overview.decisions(domain="tests", limit=100)).decisions
            assert sorted(one.name for one in found) == sorted(names)
            assert [one.at_seconds for one in found] == sorted((one.at_seconds for one in found), reverse=True)
            assert len((await page.overview.decisions(domain=None, limit=3)).decisions) == 3
            await cluster.delete("namespaces/default/pods/p7")
            await page.until(
                lambda: page.overview.decisions(domain=None, limit=100), lambda one: len(one.decisions) == 19
            )
            with pytest.raises(NoDomainError):
                await page.overview.decisions(domain="nowhere", limit=1)

    in_virtual_time(main)


def test_pending_pods_are_grouped_by_reason_and_counted_once_for_all_pages() -> None:
    async def main() -> None:
        async with opened(n1="4") as (cluster, page):
            names = [f"p{number:03}" for number in range(PODS_PER_GROUP + 5)]
            for name in names:
                await cluster.pod(name, cpu="400")
                await asyncio.sleep(0.1)
            await cluster.pod("nowhere", nodeSelector={"zone": "moon"})
            await refused(cluster, *names, "nowhere")
            found = await page.pending.pending(group="tests/unschedulable/NodeResourcesFit")
            assert [(one.plugins, one.count) for one in found.groups] == [
                (("NodeResourcesFit",), len(names)),
                (("NodeAffinity",), 1),
            ]
            assert (found.pods_total, len(found.pods), found.pods_left_out) == (len(names) + 1, PODS_PER_GROUP, 5)
            assert [one.name for one in found.pods] == names[:PODS_PER_GROUP], "the longest waiting first"
            assert "Insufficient cpu" in found.groups[0].message
            await cluster.delete("namespaces/default/pods/nowhere")
            await cluster.until(lambda: cluster.waiting("nowhere") is None)
            assert len((await page.pending.pending(group="")).groups) == 2, "the last count is shared for a while"
            await asyncio.sleep(pending_module.KEPT_S)
            assert len((await page.pending.pending(group="none/of/these")).groups) == 1

    in_virtual_time(main)


def test_counting_pending_pods_lets_others_run() -> None:
    async def main() -> None:
        async with opened(n1="4") as (cluster, page):
            names = [f"p{number:03}" for number in range(3 * pending_module.SLICE)]
            for name in names:
                await cluster.pod(name, cpu="400")
            await refused(cluster, *names)
            turns = 0
            counting = asyncio.ensure_future(page.pending.pending(group=""))
            while not counting.done():
                turns += 1
                await asyncio.sleep(0)
            assert turns >= 3
            assert counting.result().pods_total == len(names)

    in_virtual_time(main)


def test_another_leader_is_named_and_its_pods_are_not_shown() -> None:
    async def main() -> None:
        async with opened(n1="4") as (cluster, page):
            await cluster.pod("large", cpu="400")
            await refused(cluster, "large")
            page.led_by = ELSEWHERE
            found = await page.pending.pending(group="")
            assert (found.pods_total, found.elsewhere) == (0, (ELSEWHERE,))
            assert "led by other" in (await page.overview.overview()).domains[0].led_elsewhere
            assert (await page.overview.decisions(domain=None, limit=9)).decisions == ()
            with pytest.raises(NotLeadingError):
                await page.overview.decisions(domain="tests", limit=9)

    in_virtual_time(main)


def test_nodes_are_sorted_by_share_and_summed() -> None:
    async def main() -> None:
        async with opened(n1="4", n2="8", n3="10") as (cluster, page):
            await cluster.pod("a", cpu="4", nodeSelector={"kubernetes.io/hostname": "n1"})
            await cluster.pod("b", cpu="2", nodeSelector={"kubernetes.io/hostname": "n2"})
            await cluster.bound("a", "b")
            found = await page.nodes.nodes(NodesQuery())
            assert [(one.node, one.shares[0], one.pods) for one in found.nodes] == [
                ("n1", 1.0, 1),
                ("n2", 0.25, 1),
                ("n3", 0.0, 0),
            ]
            [cpu] = [one for one in found.totals if one.resource == "cpu"]
            assert (cpu.requested, cpu.allocatable) == (6_000, 22_000)
            assert cpu.histogram == (1, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0), "a full node is not over its capacity"
            second = await page.nodes.nodes(NodesQuery(offset=1, limit=1))
            assert ([one.node for one in second.nodes], second.count, second.matching) == (["n2"], 3, 3)
            assert [one.node for one in (await page.nodes.nodes(NodesQuery(match="3"))).nodes] == ["n3"]
            assert (await page.nodes.nodes(NodesQuery(domain="tests", resource="memory"))).sorted_by == "memory"
            for query in (NodesQuery(resource="gold"), NodesQuery(domain="nowhere")):
                with pytest.raises((NoNodeError, NoDomainError)):
                    await page.nodes.nodes(query)

    in_virtual_time(main)


def test_node_in_detail_cuts_what_others_write() -> None:
    async def main() -> None:
        async with opened(n1="4") as (cluster, page):
            await cluster.pod("a", cpu="3")
            await cluster.bound("a")
            await cluster.patch("nodes/n1", {"spec": {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}})
            await page.until(lambda: page.nodes.node("n1"), lambda one: one.taints == ("k=v:NoSchedule",))
            found = await page.nodes.node("n1")
            assert (found.domains, found.resources["cpu"], [one.name for one in found.pods]) == (
                ("tests",),
                (3_000, 4_000),
                ["a"],
            )
            with pytest.raises(NoNodeError, match="node n2 is not known here"):
                await page.nodes.node("n2")

    in_virtual_time(main)


def test_quota_view_has_each_level_with_pending_requests() -> None:
    async def main() -> None:
        async with opened(n1="16") as (cluster, page):
            assert await page.view("quotas") == {
                "domain": "tests",
                "source": "",
                "levels": [],
                "levelsLeftOut": 0,
                "trouble": "",
            }
            await install_definitions(cluster)
            leaf = {"name": "team", "namespaces": ["default"], "min": {"cpu": "2"}, "max": {"cpu": "4"}}
            tree = {"name": "root", "min": {"cpu": "8"}, "max": {"cpu": "8"}, "children": [leaf]}
            path = "/apis/scheduling.sigs.k8s.io/v1beta1/namespaces/kube-system/elasticquotatrees"
            kind = {"apiVersion": "scheduling.sigs.k8s.io/v1beta1", "kind": "ElasticQuotaTree"}
            await cluster.post(path, "teams", {}, **kind, spec={"root": tree})
            for _ in range(120):  # until the program has noticed the definition
                if (await page.view("quotas"))["source"]:
                    break
                await asyncio.sleep(1.0)
            for name in ("a", "b", "c"):
                await cluster.pod(name, cpu="2")
            await cluster.until(lambda: len(cluster.bound_at) == 2)
            await cluster.until(lambda: any((one := cluster.waiting(name)) and one.message for name in "abc"))
            found = await page.view("quotas", domain="tests")
            assert (found["source"], [one["path"] for one in found["levels"]]) == (
                "ElasticQuotaTree kube-system/teams",
                ["root", "root.team"],
            )
            use = found["levels"][1]["resources"]["cpu"]
            figures = ("used", "min", "max", "borrowed", "requested")
            assert [use[name] for name in figures] == [4_000, 2_000, 4_000, 2_000, 6_000]
            assert use["shown"]["borrowed"] == "2"

    in_virtual_time(main)


def test_gang_view_shows_first_what_waits() -> None:
    async def main() -> None:
        async with open_cluster(HEAD) as cluster:
            page = Page(cluster)
            await cluster.node("n1", cpu="8")
            await members(cluster, ack("done", 2), "d0", "d1")
            await cluster.bound("d0", "d1")
            await members(cluster, ack("zero", 3), "z0", "z1")
            await cluster.until(lambda: len(list(cluster.program.cache.gangs.gangs())) == 2)
            await cluster.at_rest()
            found = await page.view("gangs", domain="forecast")
            assert [(one["gang"], one["minimum"], one["bound"]) for one in found["gangs"]] == [
                ("default/zero", 3, 0),
                ("default/done", 2, 2),
            ]
            assert found["waiting"] == 1
            assert "waits until 3 members are there" in found["gangs"][0]["why"]
            with pytest.raises(NoViewError, match="colour: unknown"):
                await page.view("gangs", domain="forecast", colour="red")

    in_virtual_time(main)
