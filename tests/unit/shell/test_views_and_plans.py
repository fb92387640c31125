"""Which domain a view or a plan is asked of, and what whoever asks wrongly, too early or too much is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import orjson
import pytest

from domains.forecast.forecast import Forecast
from multisched.config.plugins import plugin_registry
from multisched.framework.moving import RepairStatus
from multisched.framework.points import Plugin
from multisched.framework.registry import Registry
from multisched.framework.repair import RepairRefusedError, RepairRequest
from multisched.framework.views import NoViewError, ViewQuery
from multisched.plugins.scheduling_gates import SchedulingGates
from multisched.shell.plugin_views import QUERIES_MAX, ProgramViews
from multisched.whatif.repair_source import QUESTIONS_MAX, RepairPlans
from tests.unit.domains.forecast.profiles import make_profiles
from tests.unit.shell.program_kit import Cluster, at_once, play

T = TypeVar("T")

HEAD = """
apiVersion: multisched.io/v1
kind: MultischedConfiguration
lease: {enabled: false}
"""
TWO = f"""{HEAD}
domains:
- name: forecast
- {{name: second, profile: {{base: forecast}}, nodes: {{rule: labelled}}}}
- name: gpu
"""
NONE = f"{HEAD}\ndomains: [{{name: gpu}}]\n"


class Gate:
    """Computes nothing before it is opened."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.at_work = self.most_at_work = 0

    async def __call__(self, work: Callable[[], T]) -> T:
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        await self.opened.wait()
        self.at_work -= 1
        return work()


def give_profiles(cluster: Cluster) -> None:
    for worker in cluster.program.router.workers():
        for built in worker.plugins.built:
            if isinstance(built.plugin, Forecast):
                built.plugin.adopt(make_profiles(("cpu",), web={"cpu": np.full(168, 0.1)}))


async def a_node(cluster: Cluster) -> None:
    await cluster.add_node("a", cpu="2")


def plans_of(cluster: Cluster, in_thread: object = at_once) -> RepairPlans:
    return RepairPlans(cluster.program, in_thread=in_thread)  # type: ignore[arg-type]


def test_view_is_read_from_the_named_domain_only() -> None:
    async def scene(cluster: Cluster) -> None:
        views = ProgramViews(cluster.program, at_once)

        async def refusal(view: str, **options: str) -> tuple[str, int]:
            with pytest.raises(NoViewError) as refused:
                await views.document(view, ViewQuery("nodes", options))
            return str(refused.value), refused.value.status

        assert await refusal("weather") == ("no plugin serves the view weather", 404)
        shown = "domain gpu does not serve the view forecast; these domains do: forecast, second"
        assert await refusal("forecast", domain="gpu") == (shown, 404)
        assert await refusal("forecast") == ("several domains serve this view; name one of them: forecast, second", 422)
        text, status = await refusal("forecast", domain="second")
        assert (text.startswith("no profiles are active yet"), status) == (True, 503)

        give_profiles(cluster)
        found = [
            orjson.loads(await views.document("forecast", ViewQuery("nodes", {"domain": domain})))
            for domain in ("forecast", "second")
        ]
        assert [[node["node"] for node in document["nodes"]] for document in found] == [["a"], []]

    play(scene, prepare=a_node, configuration=TWO)


def test_number_of_concurrent_views_is_limited_with_a_retry_hint() -> None:
    async def scene(cluster: Cluster) -> None:
        give_profiles(cluster)
        gate = Gate()
        views, asked = ProgramViews(cluster.program, gate), ViewQuery("nodes", {"domain": "forecast"})
        waiting = [asyncio.ensure_future(views.document("forecast", asked)) for _ in range(QUERIES_MAX)]
        await asyncio.sleep(1.0)
        with pytest.raises(NoViewError) as refused:
            await views.document("forecast", asked)
        assert (str(refused.value), refused.value.status) == ("too many queries at once; retry in a moment", 429)
        assert gate.most_at_work == 2
        gate.opened.set()
        first, *others = await asyncio.gather(*waiting)
        assert [orjson.loads(one)["nodes"] for one in others] == [orjson.loads(first)["nodes"]] * (QUERIES_MAX - 1)
        assert await views.document("forecast", asked), "there is room for the next"
        assert gate.most_at_work == 2

    play(scene, prepare=a_node, configuration=TWO)


@pytest.mark.parametrize(
    ("configuration", "domain", "words", "status"),
    [
        (TWO, "", "several domains can be repaired; choose one of forecast, second", 422),
        (TWO, "secnd", "domain secnd: no such domain; did you mean second?", 404),
        (TWO, "nowhere", "domain nowhere: no such domain; those that can: forecast, second", 404),
        (TWO, "gpu", "domain gpu: no plugin that plans repairs; those that can: forecast, second", 404),
        (NONE, "gpu", "domain gpu: no plugin that plans repairs; those that can: none", 404),
        (NONE, "", "no domain has a plugin that plans repairs; enable PeakForecast in one", 404),
    ],
)
def test_plan_is_made_for_a_domain_that_can_be_repaired(
    configuration: str, domain: str, words: str, status: int
) -> None:
    async def scene(cluster: Cluster) -> None:
        plans = plans_of(cluster)
        with pytest.raises(RepairRefusedError) as refused:
            await plans.plan(RepairRequest(domain=domain))
        assert (str(refused.value), refused.value.status) == (words, status)
        with pytest.raises(RepairRefusedError) as refused:
            plans.status(domain)
        assert (str(refused.value), refused.value.status) == (words, status)

    play(scene, configuration=configuration)


def test_plan_is_made_with_the_running_plugins() -> None:
    """Whoever runs a program may give it other plugins than those that ship."""
    registry, shipped, built = Registry(), plugin_registry(), list[str]()

    def gates() -> Plugin:
        built.append("SchedulingGates")
        return SchedulingGates()

    for name in shipped.names():
        registry.add(name, gates if name == "SchedulingGates" else shipped.factory(name), "test")

    async def scene(cluster: Cluster) -> None:
        give_profiles(cluster)
        plans = RepairPlans(cluster.program, registry, at_once)
        await plans.plan(RepairRequest(domain="forecast"))
        assert len(built) == len(cluster.program.router.workers())

    play(scene, prepare=a_node, configuration=TWO)


def test_plan_names_remote_plugins_it_did_not_call() -> None:
    extender = "extenders: [{urlPrefix: 'http://127.0.0.1:1', filterVerb: filter}]"
    asking = TWO.replace("- name: forecast\n", f"- {{name: forecast, {extender}}}\n")
    words = "Extender would send requests to decide where pods fit; their responses are not known here"

    said: list[bool] = []

    async def scene(cluster: Cluster) -> None:
        give_profiles(cluster)
        plan = await plans_of(cluster).plan(RepairRequest(domain="forecast"))
        said.append(words in plan.notes)

    play(scene, prepare=a_node, configuration=TWO)
    play(scene, prepare=a_node, configuration=asking)
    assert said == [False, True]


def test_domain_with_repair_off_reports_it() -> None:
    async def scene(cluster: Cluster) -> None:
        plans = plans_of(cluster)
        assert plans.status("second") == RepairStatus(domain="second", mode="off", is_open=False)
        with pytest.raises(RepairRefusedError) as refused:
            await plans.run(RepairRequest(domain="second"), "digest")
        words = "repair is off: set repair.mode and repair.windows in the args of PeakForecast"
        assert (str(refused.value), refused.value.status) == (words, 409)

    play(scene, configuration=TWO)


def test_no_plan_is_made_before_the_caches_are_synced() -> None:
    async def scene(cluster: Cluster) -> None:
        give_profiles(cluster)
        await cluster.add_node("a")
        await cluster.settle()
        assert (await plans_of(cluster).plan(RepairRequest(domain="forecast"))).domain == "forecast"
        with pytest.raises(RepairRefusedError, match="the domain has no nodes"):
            await plans_of(cluster).plan(RepairRequest(domain="second"))

    async def too_early(cluster: Cluster) -> None:
        give_profiles(cluster)
        with pytest.raises(RepairRefusedError) as refused:
            await plans_of(cluster).plan(RepairRequest(domain="second"))
        words = "the caches are not synced with the API server yet; retry"
        assert (str(refused.value), refused.value.status) == (words, 503)

    play(scene, prepare=too_early, configuration=TWO)


def test_plans_are_made_one_at_a_time_with_a_retry_hint() -> None:
    async def scene(cluster: Cluster) -> None:
        give_profiles(cluster)
        gate = Gate()
        plans, asked = plans_of(cluster, in_thread=gate), RepairRequest(domain="forecast")
        waiting = [asyncio.ensure_future(plans.plan(asked)) for _ in range(QUESTIONS_MAX)]
        await asyncio.sleep(1.0)
        with pytest.raises(RepairRefusedError) as refused:
            await plans.plan(asked)
        words = "too many plans at once; retry in a moment"
        assert (str(refused.value), refused.value.status) == (words, 429)
        gate.opened.set()
        found = [*await asyncio.gather(*waiting), await plans.plan(asked)]
        assert [(plan.domain, plan.nodes) for plan in found] == [("forecast", 1)] * (QUESTIONS_MAX + 1)
        assert gate.most_at_work == 1

    play(scene, prepare=a_node, configuration=TWO)
