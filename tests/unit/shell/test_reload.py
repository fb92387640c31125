"""Another configuration in force while the program runs: what applies at once, what waits, and what nothing may be lost by."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from multisched.config import loading
from multisched.config.document import ConfigError, Problem
from multisched.config.schema import Configuration
from multisched.framework.dependency import Dependency
from multisched.framework.node_view import Codes, Rows, Scores
from multisched.framework.object_status import ObjectStatus
from multisched.framework.points import CycleView, PermitResult
from multisched.framework.reasons import ReasonTable
from multisched.framework.registry import PluginSetupError
from multisched.framework.status import Code, Status
from multisched.framework.traits import Traits
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod
from multisched.queueing.transitions import QueueState
from multisched.shell.configuration_watch import LOOK_S, ConfigurationWatch
from multisched.shell.reload import Reloaded
from multisched.shell.workers.plugin_workers import PluginWorkers
from tests.unit.shell.program_kit import Cluster, play

BASE = """
apiVersion: multisched.io/v1
kind: MultischedConfiguration
domains:
- name: ours
  schedulerNames: [forecast-scheduler]
  {rest}
lease: {{enabled: false}}
{more}
"""
HELD_S = 4.0
TAINT = {"key": "shut", "value": "", "effect": "NoSchedule"}
MINE = __name__
RESTART = "kubectl -n ours rollout restart deployment/ours"


def configuration(rest: str = "", more: str = "") -> Configuration:
    return loading.parse(BASE.format(rest=rest, more=more), "test")


def plugins(*enabled: str) -> str:
    return f"profile: {{plugins: {{enabled: [{', '.join(enabled)}]}}}}"


class Prefers:
    """Scores the node of its args 100, others 0."""

    name = "Prefers"
    depends_on = Dependency.NODE
    reasons = ReasonTable("Prefers")
    built = 0

    def __init__(self, args: Any, context: Any) -> None:
        self._node, self._nodes = args["node"], context.nodes
        type(self).built += 1

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        import numpy as np

        return np.array([100 * (self._nodes.node(row).name == self._node) for row in rows.tolist()], np.int64)


class Refuses:
    """Refuses the nodes of its args, and writes down by which instance a pod was bound or given up."""

    name = "Refuses"
    depends_on = Dependency.NODE
    ends: list[tuple[str, str, str]] = []  # noqa: RUF012 - one list for all instances

    def __init__(self, args: Any, context: Any) -> None:
        self.reasons = ReasonTable(self.name)
        self._code = self.reasons.code(Code.UNSCHEDULABLE, "refused by its args")
        self._refused, self._nodes, self._who = args["nodes"], context.nodes, args["who"]

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        import numpy as np

        codes = [self._code if self._nodes.node(row).name in self._refused else 0 for row in rows.tolist()]
        return np.array(codes, np.uint8)

    def reserve(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        return Status()

    def unreserve(self, cycle: CycleView, pod: Pod, node: str) -> None:
        self.ends.append((self._who, "unreserve", pod.name))

    def permit(self, cycle: CycleView, pod: Pod, node: str) -> PermitResult:
        return PermitResult(Status(Code.WAIT), HELD_S) if pod.name.startswith("held") else PermitResult(Status())

    async def pre_bind(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        if pod.name.startswith("slow"):
            await anyio.sleep(HELD_S)
        return Status()

    def post_bind(self, cycle: CycleView, pod: Pod, node: str) -> None:
        self.ends.append((self._who, "bound", pod.name))


class Says:
    """Says the word of its args in the status of quota trees."""

    name = "Says"
    status_kinds = (ObjectKind.ELASTIC_QUOTA_TREE,)
    traits = Traits(reads_objects=status_kinds)

    def __init__(self, args: Any, context: Any) -> None:
        self._word = args["word"]

    def pre_enqueue(self, pod: Pod) -> Status:
        return Status()

    def status_of(self, kind: ObjectKind, namespace: str, name: str) -> ObjectStatus:
        return ObjectStatus("uid", {"word": self._word})


class Tells(Says):
    """Writes the same status under another name."""

    name = "Tells"


class Raises:
    """Cannot be built."""

    name = "Raises"

    def __init__(self) -> None:
        raise ValueError("no licence file")


def prefers(node: str, weight: int = 100) -> str:
    return f"{{name: '{MINE}:Prefers', weight: {weight}, args: {{node: {node}}}}}"


def refuses(who: str, *nodes: str) -> str:
    return f"{{name: '{MINE}:Refuses', args: {{who: {who}, nodes: [{', '.join(nodes)}]}}}}"


def paths(reloaded: Reloaded) -> list[str]:
    return [one.path for one in reloaded.applied()]


def test_weights_and_arguments_apply_to_the_next_pod() -> None:
    async def scene(cluster: Cluster) -> None:
        for name in ("a", "b"):
            await cluster.add_node(name, cpu="32")
        await cluster.add_pod("first")
        await cluster.settle()
        built = Prefers.built
        done = cluster.program.reload(configuration(plugins(prefers("b"))))
        assert [one.text().rpartition(".")[2] for one in done.applied()] == ["node: a -> b"]
        assert done.waiting() == []
        await cluster.add_pod("second")
        await cluster.settle()
        assert Prefers.built == built + 1
        cluster.program.reload(configuration(plugins(prefers("b", weight=50))))
        assert Prefers.built == built + 1, "another weight is no reason to build a plugin anew"
        await cluster.add_pod("third")
        await cluster.settle()
        assert cluster.placed == {"first": "a", "second": "b", "third": "b"}
        assert cluster.differences == []

    play(scene, configuration=BASE.format(rest=plugins(prefers("a")), more=""))


def test_refused_pods_are_retried_by_the_new_profile_and_keep_their_wait() -> None:
    async def scene(cluster: Cluster) -> None:
        await cluster.add_node("a")
        await cluster.add_pod("p")
        await cluster.settle(3.0)
        worker = cluster.program.router.workers()[0]
        (before,) = worker.queue.entries()
        assert (before.state, before.attempts) == (QueueState.UNSCHEDULABLE, 1)
        cluster.program.reload(configuration(plugins(refuses("new"))))
        (after,) = worker.queue.entries()
        assert (after.added_s, after.state) == (before.added_s, QueueState.ACTIVE)
        await cluster.settle(1.0)
        assert cluster.placed == {"p": "a"}
        worker.queue.validate()

    play(scene, configuration=BASE.format(rest=plugins(refuses("old", "a")), more=""))


def test_pods_are_retried_when_a_plugin_no_longer_runs_at_filter() -> None:
    async def scene(cluster: Cluster) -> None:
        await cluster.add_node("a")
        await cluster.add_pod("p")
        await cluster.settle(3.0)
        assert cluster.placed == {}
        unfiltered = plugins(refuses("me", "a")).removesuffix("}") + ", points: {filter: [NodeResourcesFit]}}"
        cluster.program.reload(configuration(unfiltered))
        await cluster.settle(3.0)
        assert cluster.placed == {"p": "a"}

    play(scene, configuration=BASE.format(rest=plugins(refuses("me", "a")), more=""))


@pytest.mark.parametrize("name", ["held", "slow"])
def test_pods_in_flight_finish_with_the_profile_that_decided_them(name: str) -> None:
    async def scene(cluster: Cluster) -> None:
        Refuses.ends.clear()
        await cluster.add_node("a", cpu="8")
        await cluster.add_pod(f"{name}-1")
        await cluster.settle(1.0)
        cluster.program.reload(configuration(plugins(refuses("new", "a"))))
        await cluster.add_pod("later")
        await cluster.settle(1.0)
        worker = cluster.program.router.workers()[0]
        if name == "held":
            assert worker.waiting.allow(cluster.program.pods.uid_of(f"default/{name}-1"), "Refuses")
        await cluster.settle(HELD_S)
        assert await cluster.nodes_of_pods() == {f"{name}-1": "a", "later": ""}
        assert Refuses.ends == [("old", "bound", f"{name}-1")]

    play(scene, configuration=BASE.format(rest=plugins(refuses("old")), more=""))


def test_permit_refusal_after_a_reload_is_undone_by_the_old_profile() -> None:
    async def scene(cluster: Cluster) -> None:
        Refuses.ends.clear()
        await cluster.add_node("a", cpu="8")
        await cluster.add_node("b", cpu="8")
        await cluster.add_pod("held-1", nodeSelector={"kubernetes.io/hostname": "a"})
        await cluster.settle(1.0)
        cluster.program.reload(configuration(plugins(refuses("new", "b"))))
        worker = cluster.program.router.workers()[0]
        uid = cluster.program.pods.uid_of("default/held-1")
        assert worker.waiting.reject(uid, "Refuses", "not now")
        await cluster.settle(2.5)
        assert Refuses.ends == [("old", "unreserve", "held-1")]
        assert worker.waiting.allow(uid, "Refuses")
        await cluster.settle(1.0)
        assert Refuses.ends[-1] == ("new", "bound", "held-1")

    play(scene, configuration=BASE.format(rest=plugins(refuses("old")), more=""))


def test_unbuildable_plugin_leaves_everything_unchanged() -> None:
    async def scene(cluster: Cluster) -> None:
        await cluster.add_node("a", cpu="32")
        await cluster.add_node("b", cpu="32")
        in_force = cluster.program.configuration
        wanted = configuration(plugins(prefers("b"), f"{{name: '{MINE}:Raises'}}") + "\n  queue: {initialBackoff: 2s}")
        with pytest.raises(PluginSetupError, match="no licence file"):
            cluster.program.reload(wanted)
        assert cluster.program.configuration is in_force
        await cluster.add_pod("p")
        await cluster.settle()
        assert cluster.placed == {"p": "a"}

    play(scene, configuration=BASE.format(rest=plugins(prefers("a")), more=""))


def test_restart_requirement_is_named_and_the_rest_applies() -> None:
    async def scene(cluster: Cluster) -> None:
        wanted = configuration(
            "nodes: {selector: {matchLabels: {a: b}}}\n  queue: {maxBackoff: 20s}", "client: {auditPeriod: 2m}"
        )
        done = cluster.program.reload(wanted)
        assert paths(done) == ["domains[ours].queue.maxBackoff"]
        assert {one.path for one in done.waiting()} == {
            "domains[ours].nodes.rule",
            "domains[ours].nodes.selector.matchLabels.a",
            "domains[ours].nodes.selector.matchExpressions",
            "client.auditPeriod",
        }
        assert all(one.restart for one in done.waiting())
        assert cluster.program.reload(wanted).applied() == []

    play(scene, configuration=BASE.format(rest="", more=""))


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("profile: {base: default}", "profile: {base: gpu}", "ledger gpu-devices does not hold the pods"),
        (
            "profile: {base: default}",
            "profile: {base: default, plugins: {disabled: [GangScheduling]}}",
            "gathers gangs",
        ),
        (
            "profile: {base: default}",
            plugins(f"{{name: '{MINE}:Prefers', args: {{node: a}}, isolation: thread}}"),
            "in a thread",
        ),
        (
            "profile: {base: forecast}",
            "profile: {base: forecast, plugins: {enabled: [{name: PeakForecast, args: {dimensions: [cpu]}}]}}",
            "other capacities or dimensions",
        ),
    ],
)
def test_incompatible_profile_waits_as_a_whole_for_a_restart(before: str, after: str, why: str) -> None:
    async def scene(cluster: Cluster) -> None:
        done = cluster.program.reload(configuration(after + "\n  queue: {maxBackoff: 20s}"))
        assert paths(done) == ["domains[ours].queue.maxBackoff"]
        assert done.waiting()
        assert all(why in one.restart for one in done.waiting()), done.waiting()

    play(scene, configuration=BASE.format(rest=before, more=""))


@pytest.mark.parametrize(
    ("before", "waits"),
    [
        ("profile: {base: default}", f"{{name: '{MINE}:Prefers', args: {{node: a}}, isolation: thread}}"),
        (
            f"profile: {{plugins: {{enabled: [{{name: '{MINE}:Prefers', args: {{node: a}}, isolation: thread}}]}}}}",
            f"{{name: '{MINE}:Refuses', args: {{who: me, nodes: []}}}}",
        ),
        ("profile: {base: forecast}", "{name: PeakForecast, args: {dimensions: [cpu]}}"),
    ],
)
def test_unbuildable_plugin_is_named_although_its_profile_waits(before: str, waits: str) -> None:
    """Else the rest of the file came into force, mistake and all. Nothing is left behind of what was tried."""

    async def scene(cluster: Cluster) -> None:
        worker_factory, in_force = cluster.program.worker_factory, cluster.program.configuration
        assert isinstance(worker_factory, PluginWorkers)
        workers = len(worker_factory.threads)
        wanted = plugins(waits, f"{{name: '{MINE}:Raises'}}") + "\n  queue: {maxBackoff: 20s}"
        with pytest.raises(PluginSetupError, match="no licence file"):
            cluster.program.reload(configuration(wanted))
        assert cluster.program.configuration is in_force
        assert len(worker_factory.threads) == workers

    play(scene, configuration=BASE.format(rest=before, more=""))


def test_reloaded_policy_tolerations_apply_to_and_leave_pending_pods() -> None:
    async def scene(cluster: Cluster) -> None:
        await cluster.add_node("a", taints=[TAINT])
        await cluster.add_pod("p")
        await cluster.settle(2.0)
        assert cluster.placed == {}
        done = cluster.program.reload(configuration("policy: {tolerations: [{key: shut, operator: Exists}]}"))
        assert paths(done)[0].startswith("domains[ours].policy.tolerations")
        await cluster.settle(2.0)
        assert cluster.placed == {"p": "a"}
        cluster.program.reload(configuration("policy: {tolerations: []}"))
        await cluster.add_node("b", taints=[TAINT], cpu="8")
        await cluster.add_pod("q")
        await cluster.settle(2.0)
        assert cluster.placed == {"p": "a"}
        (waiting,) = cluster.program.pods.pending.values()
        assert "shut" not in {one.key for one in waiting.spec.tolerations}
        assert cluster.differences == []

    play(scene, configuration=BASE.format(rest="", more=""))


def test_new_queue_sort_reorders_pending_pods() -> None:
    async def scene(cluster: Cluster) -> None:
        worker = cluster.program.router.workers()[0]
        worker.pause_scheduling()
        for name, cpu in (("loose", "1"), ("bound", "1")):
            limits = {"cpu": cpu, "memory": "0"} if name == "bound" else {}
            await cluster.add_pod(name, cpu=cpu, limits=limits)
        await cluster.settle(0.5)
        cluster.program.reload(configuration("profile: {queueSort: PrioritySort}"))
        worker.queue.validate()
        worker.resume_scheduling()
        await cluster.add_node("a", cpu="32")
        await cluster.settle(2.0)
        assert set(cluster.placed) == {"loose", "bound"}
        assert cluster.program.reload(configuration()).applied()
        worker.queue.validate()

    play(scene, configuration=BASE.format(rest="", more=""))


def test_concurrency_grows_and_shrinks_while_pods_are_bound() -> None:
    async def scene(cluster: Cluster) -> None:
        await cluster.add_node("a")
        await cluster.add_node("b")
        cluster.transport.bind_s = 1.0
        worker = cluster.program.router.workers()[0]
        for count, name in ((4, "few"), (32, "many"), (2, "two")):
            cluster.program.reload(configuration(f"concurrency: {{bindWorkers: {{min: {count}, max: {count}}}}}"))
            for number in range(40):
                await cluster.add_pod(f"{name}-{number}", cpu="10m")
            await cluster.settle(0.5)
            assert worker.limit.in_flight == count
            await cluster.settle(45.0)
        assert len(cluster.placed) == 120
        assert cluster.differences == []

    play(scene, configuration=BASE.format(rest="", more=""))


def test_queue_settings_apply_together_with_another_concurrency() -> None:
    async def scene(cluster: Cluster) -> None:
        worker = cluster.program.router.workers()[0]
        await cluster.add_node("a", cpu="1")
        await cluster.add_pod("large", cpu="2")
        await cluster.settle(30.0)
        (before,) = worker.queue.entries(QueueState.UNSCHEDULABLE)
        cluster.program.reload(
            configuration("concurrency: {bindWorkers: 4}\n  queue: {unschedulableFlush: 100s}"),
        )
        (after,) = worker.queue.entries(QueueState.UNSCHEDULABLE)
        assert before.retry_at_s is not None
        assert after.retry_at_s == before.retry_at_s - 200.0
        assert worker.limit.bounds.most == 4

    play(scene, configuration=BASE.format(rest="", more=""))


def test_new_plugin_of_one_domain_writes_its_statuses() -> None:
    def says(word: str) -> str:
        """Two domains, of which the first has the plugin, and none has another one for quotas."""
        enabled = f"{{name: '{MINE}:Says', args: {{word: {word}}}}}"
        first = f"profile: {{plugins: {{enabled: [{enabled}], disabled: [ElasticQuota]}}}}"
        nodes = "nodes: {selector: {matchLabels: {of: them}}}"
        profile = "profile: {plugins: {disabled: [ElasticQuota]}}"
        return f"{first}\n- {{name: theirs, schedulerNames: [their-scheduler], {nodes}, {profile}}}"

    async def scene(cluster: Cluster) -> None:
        key = (ObjectKind.ELASTIC_QUOTA_TREE, "kube-system", "tree")
        assert cluster.program.statuses.status_of(key) == ObjectStatus("uid", {"word": "old"})
        assert cluster.program.reload(configuration(says("new"))).applied()
        assert cluster.program.statuses.status_of(key) == ObjectStatus("uid", {"word": "new"})

    play(scene, configuration=BASE.format(rest=says("old"), more=""))


def test_reload_request_during_a_reload_starts_another_at_once() -> None:
    """The file may have been written again since it was read."""

    async def scene(cluster: Cluster) -> None:
        looks = 0

        async def look() -> None:
            nonlocal looks
            looks += 1
            await anyio.sleep(0.1)

        watch = ConfigurationWatch(cluster.program, look, file="conf.yaml", in_thread=at_once)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch.run)
            await anyio.sleep(0.05)
            watch.look_now()
            await anyio.sleep(0.1)
            assert looks == 2
            tasks.cancel_scope.cancel()

    play(scene, configuration=BASE.format(rest="", more=""))


async def at_once(work: Any) -> Any:
    """Virtual time waits for no thread."""
    return work()


def watch_of(cluster: Cluster, said: list[Configuration | ConfigError | None]) -> ConfigurationWatch:
    async def look() -> Configuration | None:
        one = said.pop(0) if said else None
        if isinstance(one, ConfigError):
            raise one
        return one

    return ConfigurationWatch(cluster.program, look, file="conf.yaml", in_thread=at_once, restart_command=RESTART)


def test_reload_result_is_reported_by_event_view_and_statistics() -> None:
    async def scene(cluster: Cluster) -> None:
        mistake = ConfigError([Problem("conf.yaml", 3, 1, "x", "unknown key")])
        said: list[Configuration | ConfigError | None] = [
            configuration("queue: {maxBackoff: 20s}"),
            None,
            mistake,
            None,
            configuration("queue: {maxBackoff: 30s}", "client: {auditPeriod: 2m}"),
        ]
        watch = watch_of(cluster, said)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch.run)
            await cluster.settle(1.0)
            assert watch.configuration().settings["domains[ours].queue.maxBackoff"] == "20s"
            assert watch.configuration().problems == ()
            await cluster.settle(2 * LOOK_S)
            assert watch.configuration().problems == ("conf.yaml:3:1: x: unknown key",)
            assert watch.configuration().settings["domains[ours].queue.maxBackoff"] == "20s"
            assert (watch.statistics.is_last_good, watch.statistics.rejected) == (False, 1)
            watch.look_now()
            await cluster.settle(0.1)
            watch.look_now()
            await cluster.settle(0.1)
            view = watch.configuration()
            assert view.settings["domains[ours].queue.maxBackoff"] == "30s"
            assert [(one.path, one.before, one.after) for one in view.waiting] == [("client.auditPeriod", "1m", "2m")]
            assert view.problems == ()
            statistics = watch.statistics
            assert (statistics.applied, statistics.is_last_good, statistics.waiting) == (2, True, 1)
            tasks.cancel_scope.cancel()
        await cluster.settle(2.0)
        events = await cluster.send("GET", "/apis/events.k8s.io/v1/namespaces/kube-system/events")
        assert RESTART in events["items"][-1]["note"]
        assert watch.configuration().restart_command == RESTART
        assert [(one["reason"], one["type"], one["regarding"]["kind"]) for one in events["items"]] == [
            ("ConfigurationApplied", "Normal", "Lease"),
            ("ConfigurationRejected", "Warning", "Lease"),
            ("ConfigurationApplied", "Normal", "Lease"),
            ("RestartNeeded", "Warning", "Lease"),
        ]

    play(scene, configuration=BASE.format(rest="", more=""))


def test_reload_event_refers_to_the_held_lease() -> None:
    """`kubectl describe lease` finds events by the uid."""
    led = BASE.replace("enabled: false", "enabled: true")

    async def scene(cluster: Cluster) -> None:
        watch = watch_of(cluster, [loading.parse(led.format(rest="queue: {maxBackoff: 20s}", more=""), "test")])
        async with anyio.create_task_group() as tasks:
            await cluster.settle(30.0)
            tasks.start_soon(watch.run)
            await cluster.settle(2.0)
            tasks.cancel_scope.cancel()
        await cluster.settle(2.0)
        leases = await cluster.send("GET", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases")
        events = await cluster.send("GET", "/apis/events.k8s.io/v1/namespaces/kube-system/events")
        (event,) = [one for one in events["items"] if one["reason"] == "ConfigurationApplied"]
        assert event["regarding"]["uid"] in {one["metadata"]["uid"] for one in leases["items"]}

    play(scene, configuration=led.format(rest="", more=""))


def test_reload_that_two_writers_of_one_status_refuse_changes_nothing() -> None:
    def domains(first: str, second: str) -> str:
        """Two domains, each with one plugin that writes the status of quota trees."""
        profile = "profile: {{plugins: {{enabled: [{{name: '{}:{}', args: {{word: w}}}}], disabled: [ElasticQuota]}}}}"
        names = (
            "\n- name: theirs\n  schedulerNames: [their-scheduler]\n  nodes: {selector: {matchLabels: {of: them}}}\n  "
        )
        return profile.format(MINE, first) + names + profile.format(MINE, second)

    async def scene(cluster: Cluster) -> None:
        before = cluster.program.configuration
        with pytest.raises(PluginSetupError, match="Tells and Says both write the status of ElasticQuotaTree"):
            cluster.program.reload(configuration(domains("Tells", "Says")))
        names = [{one.plugin.name for one in worker.plugins.built} for worker in cluster.program.router.workers()]
        assert cluster.program.configuration is before
        assert [("Says" in one, "Tells" in one) for one in names] == [(True, False), (True, False)]

    play(scene, configuration=BASE.format(rest=domains("Says", "Says"), more=""))
