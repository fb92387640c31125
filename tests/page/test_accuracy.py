"""What the page says of nodes, pending pods and teams is what the API server has, also after changes that only remove something."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from tests.page.browser import Tab
from tests.page.still_cluster import NODES, ApiTruth, StillCluster, running_still_cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")

LIVE = "document.getElementById('state')?.className === 'live' && document.querySelector('main h2')"
ROWS = """(caption) => {
    const found = [...document.querySelectorAll('table')].find((one) => one.caption.innerText.startsWith(caption));
    return found ? [...found.tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.innerText)) : [];
}"""
LOOKS = 300
"""Looks at a view that is to become true."""
PAUSE = "new Promise((resolve) => setTimeout(resolve, 100))"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[StillCluster]:
    async with running_still_cluster(tmp_path_factory.mktemp("still")) as running:
        await fill(running)
        yield running


def because(plugins: str) -> Any:
    """The metadata of a pod that these plugins refuse, if it waits. Some nodes have taints, for GPUs and virtual nodes."""
    return {"annotations": {"why": plugins}}


async def fill(cluster: StillCluster) -> None:
    """Pods on nodes, pods that wait for three reasons, and pods of two teams."""
    for number in range(8):
        await cluster.pod(f"web-{number}", "500m")
    slow = {"name": "first", "image": "app:v1", "resources": {"requests": {"cpu": "3", "memory": "1Gi"}}}
    await cluster.pod("with-init", "1", initContainers=[slow])
    for number in range(3):
        await cluster.pod(f"huge-{number}", "400", metadata=because("NodeResourcesFit, TaintToleration"))
    await cluster.pod("nowhere", nodeSelector={"zone": "moon"}, metadata=because("NodeAffinity, TaintToleration"))
    gates = [{"name": "example.com/wait"}]
    await cluster.pod("gated", schedulingGates=gates, metadata=because("SchedulingGates"))
    for number in range(10):
        await cluster.pod(f"red-{number}", namespace="red", metadata=because("ElasticQuota"))
    for number in range(3):
        await cluster.pod(f"blue-{number}", namespace="blue", metadata=because("ElasticQuota"))


async def change(cluster: StillCluster) -> None:
    """Removes and closes things; nothing of this is a decision of the scheduler."""
    for name in ("web-0", "web-1", "huge-0", "nowhere"):
        await cluster.delete(name)
    await cluster.delete("red-9", namespace="red")
    name = next(iter((await cluster.truth()).nodes))
    await cluster.call("PATCH", f"/api/v1/nodes/{name}", {"spec": {"unschedulable": True}})


async def show(tab: Tab, cluster: StillCluster, view: str) -> None:
    await tab.open("about:blank")
    await tab.open(f"{cluster.url}/#{view}")
    await tab.until(LIVE)


async def becomes_true(
    tab: Tab, cluster: StillCluster, said: Callable[[], Awaitable[Any]], expected: Callable[[ApiTruth], Any]
) -> None:
    """Waits until the page says what the API server has. Fails with both if it does not."""
    for _ in range(LOOKS):
        found, truth = await said(), expected(await cluster.truth())
        if found == truth:
            return
        await tab.run(PAUSE)
    assert found == truth


def rows(tab: Tab, caption: str) -> Awaitable[list[list[str]]]:
    return tab.run(f"({ROWS})({caption!r})")


async def nodes_said(tab: Tab) -> Any:
    shown = await rows(tab, "The fullest of these nodes")
    said = await tab.run(
        "[...document.querySelectorAll('main p')].map((one) => one.innerText).find((one) => /requested/.test(one))"
    )
    cells = await tab.run("[...document.querySelectorAll('.cells a')].map((one) => one.getAttribute('aria-label'))")
    return {row[0]: [*row[1:4], *row[-2:]] for row in shown}, said, sorted(cells)


def nodes_true(truth: ApiTruth) -> Any:
    found, (held, all_cores) = truth.node_rows(), truth.cores()
    said = f"{NODES} nodes: {held:,g} cores of {all_cores:,g} cores cpu requested ({round(100 * held / all_cores)} %)."
    closed = {name: ", cordoned or invalid" if row[-1] else "" for name, row in found.items()}
    return found, said, sorted(f"{name}: {row[0]}{closed[name]}" for name, row in found.items())


async def overview_said(tab: Tab) -> Any:
    text = await tab.run("document.querySelector('.card')?.innerText ?? ''")
    words = text.replace("\xa0", " ").replace(":", "").split()
    states = {state: int(words[words.index(state) - 1]) for state in ("gated", "unschedulable") if state in words}
    return f"{NODES} nodes" in text, states


def overview_true(truth: ApiTruth) -> Any:
    return True, {state: count for state, count in truth.state_counts().items() if count}


async def pending_said(tab: Tab) -> Any:
    summary = await tab.run("document.querySelector('main p')?.innerText ?? ''")
    said = Counter[str]()
    for row in await rows(tab, "Reasons"):
        # The node that `change` cordons refuses a pod only if the pod was tried again after that.
        said[", ".join(name for name in row[0].split(", ") if name != "NodeUnschedulable")] += int(row[3])
    return summary.split(" pod")[0], dict(said)


def pending_true(truth: ApiTruth) -> Any:
    counted = truth.refused_by()
    return str(counted.total()), dict(counted)


async def teams_said(tab: Tab) -> Any:
    shown = await rows(tab, "Levels of the tree")
    return {row[0].split()[-1]: (float(row[3]), float(row[4]), float(row[9])) for row in shown[1:]}


def teams_true(truth: ApiTruth) -> Any:
    return truth.teams()


VIEWS = {
    "nodes": (nodes_said, nodes_true),
    "overview": (overview_said, overview_true),
    "pending": (pending_said, pending_true),
    "teams": (teams_said, teams_true),
}


async def test_each_view_says_what_the_api_server_has(tab: Tab, cluster: StillCluster) -> None:
    for view, (said, expected) in VIEWS.items():
        await show(tab, cluster, view)
        await becomes_true(tab, cluster, lambda said=said: said(tab), expected)  # type: ignore[misc]


async def test_count_that_is_older_than_a_change_is_read_again(tab: Tab, cluster: StillCluster) -> None:
    said, expected = VIEWS["pending"]
    await show(tab, cluster, "pending")
    for number in range(4):
        await cluster.pod(f"late-{number}", "400", metadata=because("NodeResourcesFit, TaintToleration"))
    for number in range(4):
        await becomes_true(tab, cluster, lambda: said(tab), expected)
        while (await cluster.read("pending"))["ageS"] > 0.1:  # until it is counted for another reader
            await tab.run(PAUSE)
        await cluster.delete(f"late-{number}")
    await becomes_true(tab, cluster, lambda: said(tab), expected)


async def test_open_views_follow_what_is_removed(tab: Tab, cluster: StillCluster) -> None:
    changes = {
        "nodes": lambda: cluster.delete("web-2"),
        "overview": lambda: cluster.delete("huge-1"),
        "pending": lambda: cluster.delete("gated"),
        "teams": lambda: cluster.delete("blue-0", namespace="blue"),
    }
    for view, (said, expected) in VIEWS.items():
        await show(tab, cluster, view)
        await becomes_true(tab, cluster, lambda said=said: said(tab), expected)  # type: ignore[misc]
        before = await said(tab)
        await changes[view]()
        assert expected(await cluster.truth()) != before, "the change must show"
        await becomes_true(tab, cluster, lambda said=said: said(tab), expected)  # type: ignore[misc]
    await change(cluster)
    for view, (said, expected) in VIEWS.items():
        await tab.run(f"location.hash = '#{view}'")
        await becomes_true(tab, cluster, lambda said=said: said(tab), expected)  # type: ignore[misc]
