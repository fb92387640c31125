"""What a running program shows of itself to its operator, number by number, and how its parts are wired."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
import pytest

from multisched.framework.dependency import Dependency
from multisched.framework.events import ASSIGNED_POD_ADD, EventObject, EventRegistration, Hint
from multisched.framework.introspection import PluginMetric
from multisched.framework.node_view import Codes, Rows
from multisched.framework.points import CycleView, PermitResult
from multisched.framework.reasons import ReasonTable
from multisched.framework.status import SUCCESS, Code, Status
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod
from multisched.model.wire import MERGE_PATCH, Response
from multisched.observe.explain_view import ExplainQuery
from multisched.observe.queue_view import NoDomainError
from multisched.shell.adaptive_width import Bounds
from multisched.shell.telemetry import ProgramQueues, health_of, read
from multisched.whatif.explain_source import ProgramExplanations
from tests.unit.shell.program_kit import CONFIGURATION, PODS, Cluster, at_once, play


async def one_node(cluster: Cluster) -> None:
    await cluster.add_node("a")


class Picky:
    """Refuses pods called picky, and fails at every hint, metric and word of health about them."""

    name = "Picky"
    depends_on = Dependency.NODE

    def __init__(self) -> None:
        self.reasons = ReasonTable(self.name)
        self._no = self.reasons.code(Code.UNSCHEDULABLE, "not today")

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        return np.full(len(rows), self._no if pod.name == "picky" else 0, np.uint8)

    def sign(self, pod: Pod) -> str:
        return pod.name

    def events_to_register(self) -> Sequence[EventRegistration]:
        def hint(pod: Pod, old: EventObject, new: EventObject) -> Hint:
            raise RuntimeError("no hint today")

        return [EventRegistration(ASSIGNED_POD_ADD, hint)]


class Telling:
    """Tells a number and how it goes."""

    name = "Telling"

    def pre_enqueue(self, pod: Pod) -> Status:
        return SUCCESS

    def metrics(self, now_s: float) -> Sequence[PluginMetric]:
        return [PluginMetric("told", "What it tells.", {(): 7.0})]

    def health(self, now_s: float) -> str:
        return "goes on with yesterday's numbers"


class Gate:
    """Fails to say whether a pod called picky may enter the queue."""

    name = "Gate"

    def pre_enqueue(self, pod: Pod) -> Status:
        if pod.name == "picky":
            raise RuntimeError("no key")
        return SUCCESS


class Broken(Telling):
    """Fails whenever it is asked."""

    name = "Broken"

    def metrics(self, now_s: float) -> Sequence[PluginMetric]:
        raise RuntimeError("no numbers")

    def health(self, now_s: float) -> str:
        raise RuntimeError("no words")


WITH_PLUGINS = CONFIGURATION.replace(
    "- name: forecast",
    f"- name: forecast\n  profile: {{plugins: {{enabled: [{{name: '{__name__}:Picky'}}, {{name: '{__name__}:Telling'}},"
    f" {{name: '{__name__}:Broken'}}]}}}}",
)


def test_failed_hint_is_reported_for_its_plugin_and_the_pod_is_tried() -> None:
    async def scene(cluster: Cluster) -> None:
        await cluster.add_pod("picky")
        await cluster.settle()
        await cluster.add_pod("other")
        await cluster.settle()
        hints = [told for told in cluster.observer.failures if "QueueingHint" in told]
        assert set(hints) == {"Picky QueueingHint: RuntimeError('no hint today')"}
        (picky,) = cluster.program.router.workers()[0].queue.entries()
        assert picky.attempts == 2

    play(scene, prepare=one_node, configuration=WITH_PLUGINS)


def test_gated_pod_shows_no_retry() -> None:
    """Time makes the queue ask the gate again, which is no attempt."""

    async def scene(cluster: Cluster) -> None:
        await cluster.add_pod("picky")
        await cluster.settle()
        (shown,) = ProgramQueues(cluster.program, "me").queue(domain="forecast", limit=10).pods
        assert (shown.state, shown.retry_in_s) == ("gated", 0.0)

    gate = f"- name: forecast\n  profile: {{plugins: {{enabled: [{{name: '{__name__}:Gate'}}]}}}}"
    play(scene, prepare=one_node, configuration=CONFIGURATION.replace("- name: forecast", gate))


def test_failed_gate_is_reported_under_its_extension_point() -> None:
    async def scene(cluster: Cluster) -> None:
        await cluster.add_pod("picky")
        await cluster.settle()
        assert set(cluster.observer.failures) == {"Gate PreEnqueue: RuntimeError('no key')"}
        (held,) = cluster.program.router.workers()[0].queue.entries()
        assert held.message == 'running PreEnqueue plugin "Gate": RuntimeError: no key'

    gate = CONFIGURATION.replace(
        "- name: forecast", f"- name: forecast\n  profile: {{plugins: {{enabled: [{{name: '{__name__}:Gate'}}]}}}}"
    )
    play(scene, prepare=one_node, configuration=gate)


def test_health_shows_plugin_messages_and_survives_a_failed_one() -> None:
    async def scene(cluster: Cluster) -> None:
        told = read(cluster.program).domains["forecast"].plugin_metrics
        assert [one.values for one in told if one.name == "told"] == [{(): 7.0}]
        words = health_of(cluster.program).split("; ")
        assert "forecast/Telling: goes on with yesterday's numbers" in words
        assert not any("Broken" in one or "gpu/" in one for one in words)
        assert {one.split(":")[0] for one in cluster.observer.failures} == {"Broken Metrics", "Broken Health"}

    play(scene, prepare=one_node, configuration=WITH_PLUGINS)


def test_equal_plugin_messages_of_several_domains_are_shown_once() -> None:
    both = WITH_PLUGINS.replace(
        "- name: gpu", f"- name: gpu\n  profile: {{plugins: {{enabled: [{{name: '{__name__}:Telling'}}]}}}}"
    )

    async def scene(cluster: Cluster) -> None:
        assert "forecast, gpu/Telling: goes on with yesterday's numbers" in health_of(cluster.program).split("; ")

    play(scene, prepare=one_node, configuration=both)


def test_node_whose_label_names_no_domain_is_reported_until_the_label_is_good() -> None:
    async def scene(cluster: Cluster) -> None:
        assert "no domain uses" not in health_of(cluster.program)
        await cluster.add_node("lost", labels={"multisched.io/domain": "forcast"})
        await cluster.settle()
        why = "its label multisched.io/domain is forcast, which is not a configured domain; did you mean forecast?"
        assert f"no domain uses node lost: {why}" in health_of(cluster.program)
        body = await cluster.send("GET", "/apis/events.k8s.io/v1/events")
        told = [(one["reason"], one["note"]) for one in body["items"] if one["regarding"]["name"] == "lost"]
        assert told == [("UnknownDomain", f"No domain uses this node: {why}")]
        assert read(cluster.program).reflectors["nodes"].malformed == 1
        good = {"metadata": {"labels": {"multisched.io/domain": "forecast"}}}
        await cluster.send("PATCH", "/api/v1/nodes/lost", good, content_type=MERGE_PATCH)
        await cluster.settle()
        assert "no domain uses" not in health_of(cluster.program)

    play(scene, prepare=one_node)


def test_key_of_a_pod_without_effect_gets_one_event_for_its_workload() -> None:
    async def scene(cluster: Cluster) -> None:
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "rs", "controller": True}
        for name in ("web-1", "web-2"):
            metadata = {"ownerReferences": [owner]}
            await cluster.add_pod(name, labels={"multisched.io/gpu-milli": "250"}, metadata=metadata)
        await cluster.settle()
        body = await cluster.send("GET", "/apis/events.k8s.io/v1/events")
        told = [(one["regarding"]["name"], one["note"]) for one in body["items"] if one["reason"] == "IgnoredKey"]
        text = "label multisched.io/gpu-milli has no effect: it is read as an annotation; write it there"
        assert told == [("web-1", text)]
        view = await ProgramExplanations(cluster.program, in_thread=at_once).pod(ExplainQuery("default", "web-2"))
        assert text in view.notes

    play(scene, prepare=one_node)


def test_distrusted_lists_are_reported() -> None:
    async def scene(cluster: Cluster) -> None:
        assert "lists are older" not in health_of(cluster.program)
        cluster.program.history.doubt("/api/v1/pods")
        words = "the API server's lists are older than the cache: scheduling is paused until this is resolved"
        assert health_of(cluster.program).split("; ")[0] == words
        cluster.program.history.listed("/api/v1/pods")
        assert "lists are older" not in health_of(cluster.program)

    play(scene, prepare=one_node)


def test_unreadable_kinds_are_reported_with_reasons() -> None:
    async def scene(cluster: Cluster) -> None:
        store, watch = cluster.program.cache.objects, cluster.program.objects
        assert watch.unreadable() == ""
        store.set_unreadable(ObjectKind.CSI_NODE, "403 Forbidden")
        assert watch.unreadable() == "CSINode: 403 Forbidden"
        store.set_unreadable(ObjectKind.STORAGE_CLASS, "404 Not Found")
        assert watch.unreadable() == "StorageClass: 404 Not Found; CSINode: 403 Forbidden"

    play(scene)


def test_broken_watch_is_shown_with_its_lag() -> None:
    async def scene(cluster: Cluster) -> None:
        refusal = Response(500, b"", {})
        cluster.transport.answer = lambda method, path: refusal if path.startswith("/api/v1/pods?") else None
        cluster.program.reflectors["pods"].request_relist()
        await asyncio.sleep(20.0)
        shown = read(cluster.program).reflectors
        assert {kind: one.lag_s for kind, one in shown.items() if one.lag_s} == {"pods": 20.0}

    play(scene, prepare=one_node)


def test_readings_count_events() -> None:
    """Three pods are bound, one waits, one cannot be read, one went; a list and a watch of pods failed."""

    async def scene(cluster: Cluster) -> None:
        for name in ("one", "two", "three"):
            await cluster.add_pod(name)
        await cluster.add_pod("huge", cpu="100")
        await cluster.add_pod("odd", tolerations=[{"key": "k", "operator": "Exists"}] * 300)
        await cluster.settle()
        await cluster.delete_pod("three")
        await cluster.settle()
        refusal = Response(500, orjson.dumps({"kind": "Status", "message": "etcd"}), {})
        cluster.transport.answer = lambda method, path: refusal if path.startswith("/api/v1/pods?limit") else None
        cluster.program.reflectors["pods"].request_relist()
        await asyncio.sleep(0.5)
        cluster.transport.answer = lambda method, path: None
        await cluster.settle(40.0)

        readings = read(cluster.program)
        assert readings.cached == {"nodes": 1, "pods": 2, "assumed_pods": 0}
        pods = readings.reflectors["pods"]
        assert (pods.lists, pods.errors, pods.malformed) == (2, 1, 1)
        assert pods.events >= 9
        assert 0.0 <= pods.lag_s <= 61.0
        forecast = readings.domains["forecast"]
        assert forecast.pending == {"active": 0, "backoff": 0, "unschedulable": 1, "gated": 0, "gang": 0}
        assert forecast.unschedulable_by_plugin == {"NodeResourcesFit": 1}
        assert forecast.incoming == {
            ("active", "UnschedulablePodAdd"): 4,
            ("unschedulable", "ScheduleAttemptFailure"): 2,
            ("active", "AssignedPodDelete"): 1,
        }
        assert (forecast.in_flight, forecast.permit_waiting, forecast.binds_in_flight) == (0, 0, 0)
        assert (forecast.conflicts_true, forecast.conflicts_false, forecast.unknown_binds) == (0, 0, 0)
        assert forecast.class_misses + forecast.class_hits >= 4
        assert forecast.preemption_attempts >= 1
        assert readings.calls_pending == {"pod_status_patch": 0, "pod_binding": 0}
        assert readings.calls_ended[("pod_status_patch", "error")] == 0
        assert readings.calls_ended[("pod_status_patch", "success")] >= 1
        assert readings.events["dropped"] == 0
        assert readings.events["stored"] >= 4
        assert readings.throttled == 0
        assert readings.judge is None

        view = ProgramQueues(cluster.program, "me").queue(domain=None, limit=10)
        assert view.identity == "me"
        assert [(pod.name, pod.state) for pod in view.pods] == [("huge", "unschedulable"), ("odd", "refused")]
        (counts, other) = (domain.counts for domain in view.domains)
        waiting = {"active": 0, "backoff": 0, "unschedulable": 0, "gated": 0, "gang": 0}
        rest = {"quarantined": 0, "refused": 0, "permit": 0, "binding": 0}
        assert counts == {**waiting, **rest, "unschedulable": 1, "refused": 1}
        assert other == {**waiting, **rest}
        odd = view.pods[1]
        assert (odd.domain, odd.namespace, odd.uid != "", odd.attempts) == ("forecast", "default", True, 0)
        assert "spec.tolerations" in odd.message

    play(scene, prepare=one_node)


@pytest.mark.parametrize(
    ("domain", "hint"),
    [("nope", "there are forecast, gpu"), ("forcast", "did you mean forecast?"), ("", "there are forecast, gpu")],
)
def test_unknown_domain_has_no_queue(domain: str, hint: str) -> None:
    async def scene(cluster: Cluster) -> None:
        with pytest.raises(NoDomainError) as refused:
            ProgramQueues(cluster.program, "me").queue(domain=domain, limit=10)
        assert str(refused.value) == f"domain {domain}: no such domain; {hint}"

    play(scene)


def test_each_domain_counter_has_its_own_metric() -> None:
    async def scene(cluster: Cluster) -> None:
        (worker, other) = cluster.program.router.workers()
        worker.cycle.conflicts.true, worker.cycle.conflicts.false = 11, 12
        worker.cycle.classes.hits, worker.cycle.classes.misses = 13, 14
        worker.cycle.classes.unsigned["Odd"] = 15
        worker.sender.unknown = 16
        worker.limit.set_bounds(Bounds(17, 17))
        worker.limit.in_flight = 18
        other.limit.in_flight = 100
        cluster.program.nodes.malformed, cluster.program.pods.malformed = 19, 20
        for _ in range(21):
            cluster.program.limiter.note_throttled(0.0)
        readings = read(cluster.program)
        shown = readings.domains["forecast"]
        assert (shown.conflicts_true, shown.conflicts_false) == (11, 12)
        assert (shown.class_hits, shown.class_misses, shown.unsigned) == (13, 14, {"Odd": 15})
        assert (shown.unknown_binds, shown.bind_limit, shown.binds_in_flight) == (16, 17, 18)
        assert readings.calls_pending["pod_binding"] == 118
        assert (readings.reflectors["nodes"].malformed, readings.reflectors["pods"].malformed) == (19, 20)
        assert readings.throttled == 21

    play(scene, prepare=one_node)


def test_unwritten_pod_reports_are_counted_by_result() -> None:
    """Five pods fit nowhere; of the first two the server takes neither event nor condition."""

    async def scene(cluster: Cluster) -> None:
        def answer(method: str, path: str) -> Response | None:
            is_told = (method == "PATCH" and path.endswith("/status")) or (method == "POST" and "/events" in path)
            refusal = Response(403, orjson.dumps({"kind": "Status", "message": "no"}), {})
            return refusal if is_told else None

        cluster.transport.answer = answer
        for name in ("one", "two"):
            await cluster.add_pod(name, cpu="100")
        await cluster.settle()
        cluster.transport.answer = lambda method, path: None
        for name in ("three", "four", "five"):
            await cluster.add_pod(name, cpu="100")
        await cluster.settle()
        readings = read(cluster.program)
        assert (readings.events["stored"], readings.events["dropped"]) == (3, 2)
        assert readings.calls_ended == {("pod_status_patch", "success"): 3, ("pod_status_patch", "error"): 2}

    play(scene, prepare=one_node)


async def local_disk(cluster: Cluster) -> None:
    """A claim that waits for its first pod, and a disk on node a that would do."""
    await cluster.add_node("a", labels={"kubernetes.io/hostname": "a"})
    await cluster.send(
        "POST",
        "/apis/storage.k8s.io/v1/storageclasses",
        {
            "metadata": {"name": "local"},
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer",
        },
    )
    on_a = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["a"]}
    shared: dict[str, Any] = {"storageClassName": "local", "accessModes": ["ReadWriteOnce"]}
    volume = {
        **shared,
        "capacity": {"storage": "1Gi"},
        "local": {"path": "/disk"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [on_a]}]}},
    }
    await cluster.send("POST", "/api/v1/persistentvolumes", {"metadata": {"name": "disk"}, "spec": volume})
    available = {"status": {"phase": "Available"}}
    await cluster.send("PATCH", "/api/v1/persistentvolumes/disk/status", available, content_type=MERGE_PATCH)
    claim = {**shared, "resources": {"requests": {"storage": "1Gi"}}}
    claims = "/api/v1/namespaces/default/persistentvolumeclaims"
    await cluster.send("POST", claims, {"metadata": {"name": "data"}, "spec": claim})


def test_volume_is_bound_before_the_pod_and_the_write_is_counted() -> None:
    async def scene(cluster: Cluster) -> None:
        await cluster.add_pod("p", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}])
        await cluster.settle()
        disk = await cluster.send("GET", "/api/v1/persistentvolumes/disk")
        assert disk["spec"]["claimRef"]["name"] == "data"
        assert await cluster.nodes_of_pods() == {"p": ""}, "nobody has bound the claim yet"
        (key,) = read(cluster.program).volume_writes
        assert key == ("PersistentVolume", "done")

    play(scene, prepare=local_disk)


def test_relabelled_namespace_requeues_the_pod_that_selects_it() -> None:
    """Only who is told what it was before can see that it is another now."""
    term = {
        "labelSelector": {"matchLabels": {"app": "cache"}},
        "namespaceSelector": {"matchLabels": {"team": "blue"}},
        "topologyKey": "disk",
    }

    async def prepare(cluster: Cluster) -> None:
        await cluster.add_node("a", labels={"disk": "fast"})
        await cluster.add_pod("cache", metadata={"labels": {"app": "cache"}})

    async def scene(cluster: Cluster) -> None:
        near = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        await cluster.add_pod("near", affinity=near)
        await cluster.settle()
        assert await cluster.nodes_of_pods() == {"cache": "a", "near": ""}
        labels = {"metadata": {"labels": {"team": "blue"}}}
        await cluster.send("PATCH", "/api/v1/namespaces/default", labels, content_type=MERGE_PATCH)
        await cluster.settle()
        assert await cluster.nodes_of_pods() == {"cache": "a", "near": "a"}

    play(scene, prepare=prepare)


def test_judge_runs_periodically_and_reports_pods_that_violate_a_rule() -> None:
    async def scene(cluster: Cluster) -> None:
        for name in ("first", "second"):
            await cluster.add_pod(name, cpu="3", scheduler="another")
            await cluster.bind(name, "a")
        await cluster.settle(590.0)
        judge = read(cluster.program).judge
        assert judge is not None
        assert (judge.runs, judge.failures, judge.ended_at_s) == (0, 0, 0.0)
        await cluster.settle(10.0)
        judge = read(cluster.program).judge
        assert judge is not None
        assert (judge.runs, judge.failures) == (1, 0)
        assert judge.ended_at_s > 0
        assert {rule: pods for rule, pods in judge.violations.items() if pods} == {"resources": 1}
        events = (await cluster.send("GET", "/apis/events.k8s.io/v1/namespaces/default/events"))["items"]
        (told,) = [event for event in events if event["action"] == "Verifying"]
        assert told["regarding"]["name"] in ("first", "second")
        assert told["reportingController"] == "forecast-scheduler"

        cluster.transport.answer = lambda method, path: Response(500, b"", {}) if "limit=" in path else None
        await cluster.settle(600.0)
        judge = read(cluster.program).judge
        assert judge is not None
        assert (judge.runs, judge.failures) == (1, 1)

    play(scene, prepare=one_node, configuration=f"{CONFIGURATION}verify: {{every: 10m}}\n")


def test_judge_does_not_run_without_the_setting() -> None:
    async def scene(cluster: Cluster) -> None:
        assert cluster.program.judge is None
        assert read(cluster.program).judge is None

    play(scene)


def test_program_deletes_victims_with_the_reason() -> None:
    """Through the API, by its own writers; there is no kubelet here to end them."""

    async def scene(cluster: Cluster) -> None:
        await cluster.add_pod("low", cpu="3")
        await cluster.settle()
        await cluster.send(
            "POST", "/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "urgent"}, "value": 100}
        )
        await cluster.add_pod("high", cpu="3", priorityClassName="urgent")
        await cluster.settle()
        low = await cluster.send("GET", f"{PODS}/low")
        assert low["metadata"]["deletionTimestamp"]
        told = {one["type"]: one for one in low["status"]["conditions"]}["DisruptionTarget"]
        assert (told["status"], told["reason"]) == ("True", "PreemptionByScheduler")
        assert (await cluster.send("GET", f"{PODS}/high"))["status"]["nominatedNodeName"] == "a"
        await cluster.delete_pod("low")
        await cluster.settle()
        assert await cluster.nodes_of_pods() == {"high": "a"}
        events = await cluster.send("GET", "/apis/events.k8s.io/v1/namespaces/default/events")
        said = {(one["reason"], one["regarding"]["name"]): one["note"] for one in events["items"]}
        assert said["Preempted", "low"].startswith("Preempted by")
        assert said["Scheduled", "high"] == "Successfully assigned default/high to a"

    play(scene, prepare=one_node)


class Waits:
    """Keeps pods called wait-… at Permit."""

    name = "Waits"

    def permit(self, cycle: CycleView, pod: Pod, node: str) -> PermitResult:
        return PermitResult(Status(Code.WAIT), 60.0) if pod.name.startswith("wait") else PermitResult(SUCCESS)


def test_pods_at_permit_and_binds_in_flight_are_shown_separately() -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.transport.bind_s = 30.0
        for name in ("wait-1", "wait-2", "slow"):
            await cluster.add_pod(name)
        await cluster.settle()
        forecast = read(cluster.program).domains["forecast"]
        assert (forecast.in_flight, forecast.permit_waiting, forecast.binds_in_flight) == (3, 2, 1)
        counts = ProgramQueues(cluster.program, "me").queue(domain="forecast", limit=10).domains[0].counts
        assert (counts["permit"], counts["binding"]) == (2, 1)

    profile = f"- name: forecast\n  profile: {{plugins: {{enabled: [{{name: '{__name__}:Waits'}}]}}}}\n"
    play(scene, prepare=one_node, configuration=CONFIGURATION.replace("- name: forecast\n", profile))
