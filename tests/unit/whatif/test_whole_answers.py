"""What a running program answers about a pod, whole: every field that people and tools read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from multisched.model.object_kinds import ObjectKind
from multisched.observe.explain_view import ExplainQuery
from multisched.shell.telemetry import ProgramQueues, read
from multisched.whatif.explain_source import ProgramExplanations
from tests.unit.shell.program_kit import Cluster, play

T = TypeVar("T")

NOTHING, EVERYWHERE = "has nothing to check", "passes every node"
PRE = [
    ("PreEnqueue", "SchedulingGates", "admits it"),
    ("PreEnqueue", "ElasticQuota", "admits it"),
    ("PreEnqueue", "DefaultPreemption", "admits it"),
    ("PreEnqueue", "GangScheduling", "admits it"),
    ("PreFilter", "NodeAffinity", NOTHING),
    ("PreFilter", "NodePorts", NOTHING),
    ("PreFilter", "NodeResourcesFit", "passes"),
    ("PreFilter", "VolumeRestrictions", NOTHING),
    ("PreFilter", "NodeVolumeLimits", NOTHING),
    ("PreFilter", "VolumeBinding", NOTHING),
    ("PreFilter", "VolumeZone", NOTHING),
    ("PreFilter", "PodTopologySpread", NOTHING),
    ("PreFilter", "InterPodAffinity", NOTHING),
    ("PreFilter", "DynamicResources", NOTHING),
    ("PreFilter", "ElasticQuota", NOTHING),
    ("PreFilter", "NodeDeclaredFeatures", NOTHING),
    ("Filter", "NodeUnschedulable", EVERYWHERE),
    ("Filter", "NodeName", EVERYWHERE),
    ("Filter", "TaintToleration", EVERYWHERE),
]
SILENT = [("Score", plugin, "skips this pod") for plugin in ("NodeAffinity", "PodTopologySpread", "InterPodAffinity")]


async def at_once(work: Callable[[], T]) -> T:
    """Threads answer in real time, which virtual time does not wait for."""
    return work()


def points(*more: tuple[str, str, str]) -> tuple[dict[str, str], ...]:
    return tuple({"point": point, "plugin": plugin, "said": said} for point, plugin, said in [*PRE, *more])


def short_of_cpu(*nodes: str) -> dict[str, Any]:
    return {
        "plugin": "NodeResourcesFit",
        "code": "UnschedulableAndUnresolvable",
        "reasons": ("Insufficient cpu",),
        "count": len(nodes),
        "nodes": nodes,
        "isForNominated": False,
    }


def refused(*nodes: str, ago_s: float) -> dict[str, Any]:
    """An attempt that no node could take, and that nobody's going would help."""
    count = len(nodes)
    preemption = (
        f"no new claims to deallocate, preemption: 0/{count} nodes are available:"
        f" {count} Preemption is not helpful for scheduling."
    )
    return {
        "number": 1,
        "agoS": ago_s,
        "outcome": "refused",
        "node": "",
        "message": f"0/{count} nodes are available: {count} Insufficient cpu. {preemption}",
        "snapshot": "own",
        "snapshotAgoS": ago_s,
        "domainNodes": count,
        "lookedAt": count,
        "feasible": 0,
        "points": points(
            ("Filter", "NodeResourcesFit", f"refuses {count} of {count} nodes"),
            ("PostFilter", "DynamicResources, ElasticQuota, DefaultPreemption", preemption),
        ),
        "refused": (short_of_cpu(*nodes),),
        "winner": None,
        "ties": 0,
        "runnersUp": (),
        "passedOver": (),
        "nominatedNode": "",
        "victims": (),
        "victimNodes": (),
    }


def on_node(name: str) -> dict[str, Any]:
    passed = [("NodeUnschedulable", "passes"), ("NodeName", "passes"), ("TaintToleration", "passes")]
    said = [*passed, ("NodeResourcesFit", "Insufficient cpu")]
    return {
        "node": name,
        "text": "It is not feasible: NodeResourcesFit: Insufficient cpu.",
        "plugins": tuple({"point": "Filter", "plugin": plugin, "said": text} for plugin, text in said),
        "scored": None,
    }


def base(cluster: Cluster, name: str) -> dict[str, Any]:
    return {
        "namespace": "default",
        "name": name,
        "uid": cluster.program.pods.uid_of(f"default/{name}"),
        "scheduler": "forecast-scheduler",
        "domain": "forecast",
    }


async def three_nodes(cluster: Cluster) -> None:
    for name, cpu in (("a", "2"), ("b", "4"), ("c", "1")):
        await cluster.add_node(name, cpu=cpu)
    await cluster.add_pod("low", cpu="3500m")


def asking(cluster: Cluster) -> ProgramExplanations:
    return ProgramExplanations(cluster.program, in_thread=at_once)


def test_complete_answer_for_a_pending_pod() -> None:
    async def scene(cluster: Cluster) -> None:
        await cluster.add_pod("late", cpu="8")
        await cluster.settle(20.0)
        await cluster.add_node("d", cpu="1")
        await cluster.settle(10.0)
        view = await asking(cluster).pod(ExplainQuery("default", "late", node="b", with_fixes=True))
        steps = [
            ("UnschedulablePodAdd", "active"),
            ("Popped", "in-flight"),
            ("ScheduleAttemptFailure", "unschedulable"),
        ]
        assert msgspec.to_builtins(view) == {
            **base(cluster, "late"),
            "requests": {"cpu": 8_000},
            "state": "unschedulable",
            "waitingFor": "an event that can help NodeResourcesFit",
            "node": "",
            "sinceS": 30.0,
            "waitingS": 30.0,
            "retryInS": 270.0,
            "attemptsMade": 1,
            "wakes": (
                {
                    "plugin": "NodeResourcesFit",
                    "events": (
                        "a pod on a node is deleted or asks for less",
                        "the pod itself asks for less",
                        "a node is added or changes its allocatable",
                    ),
                },
            ),
            "history": tuple({"agoS": 30.0, "event": event, "state": state} for event, state in steps),
            "attempts": (refused("a", "b", "c", ago_s=30.0),),
            "now": refused("a", "b", "c", "d", ago_s=0.0),
            "onNode": on_node("b"),
            "fixes": (
                {
                    "kind": "request",
                    "text": "lower the cpu request from 8 to 2",
                    "size": 0.75,
                    "node": "a",
                    "change": {"resource": "cpu", "from": 8000, "to": 2000},
                    "command": "",
                },
            ),
            "notes": (),
        }

    play(scene, prepare=three_nodes)


def test_complete_answer_for_a_bound_pod() -> None:
    async def scene(cluster: Cluster) -> None:
        await cluster.settle(30.0)
        view = await asking(cluster).pod(ExplainQuery("default", "low", node="c"))
        parts = (("TaintToleration", 100, 3), ("ImageLocality", 0, 1), ("PeakForecast", 12, 10))
        assert msgspec.to_builtins(view) == {
            **base(cluster, "low"),
            "requests": {"cpu": 3_500},
            "state": "bound",
            "waitingFor": "",
            "node": "b",
            "sinceS": 0.0,
            "waitingS": 0.0,
            "retryInS": None,
            "attemptsMade": 1,
            "wakes": (),
            "history": (),
            "attempts": (
                {
                    "number": 1,
                    "agoS": 35.0,
                    "outcome": "placed",
                    "node": "b",
                    "message": "",
                    "snapshot": "own",
                    "snapshotAgoS": 35.0,
                    "domainNodes": 3,
                    "lookedAt": 3,
                    "feasible": 1,
                    "points": points(("Filter", "NodeResourcesFit", "refuses 2 of 3 nodes"), *SILENT),
                    "refused": (short_of_cpu("a", "c"),),
                    "winner": {
                        "node": "b",
                        "total": 420,
                        "parts": tuple(
                            {"plugin": name, "score": score, "weight": weight, "raw": None}
                            for name, score, weight in parts
                        ),
                    },
                    "ties": 1,
                    "runnersUp": (),
                    "passedOver": (),
                    "nominatedNode": "",
                    "victims": (),
                    "victimNodes": (),
                },
            ),
            "now": None,
            "onNode": on_node("c"),
            "fixes": None,
            "notes": (),
        }

    play(scene, prepare=three_nodes)


def test_complete_answer_for_planned_replicas() -> None:
    async def scene(cluster: Cluster) -> None:
        requests = {"requests": {"cpu": "1500m"}}
        spec = {
            "schedulerName": "forecast-scheduler",
            "containers": [{"name": "c", "image": "app", "resources": requests}],
        }
        view = await asking(cluster).what_if({"kind": "Pod", "metadata": {"name": "planned"}, "spec": spec}, 3)
        nowhere = {
            "node": "",
            "total": 0,
            "ties": 0,
            "victims": (),
            "message": "0/3 nodes are available: 3 Insufficient cpu. no new claims to deallocate, preemption: 0/3 nodes are"
            " available: 1 Preemption is not helpful for scheduling, 2 No preemption victims found for incoming pod.",
        }
        assert msgspec.to_builtins(view) == {
            "namespace": "default",
            "name": "planned",
            "domain": "forecast",
            "replicas": 3,
            "placements": (
                {"replica": 1, "node": "a", "total": 550, "ties": 1, "victims": (), "message": ""},
                {"replica": 2, **nowhere},
                {"replica": 3, **nowhere},
            ),
            "notes": (),
        }

    play(scene, prepare=three_nodes)


def counted(**fields: Any) -> dict[str, Any]:
    """What a domain counts; nothing but what is named."""
    nothing = dict.fromkeys(
        (
            "in_flight",
            "event_overflows",
            "hint_calls",
            "bound_after_flush",
            "gangs_reserving",
            "reservations",
            "reservations_expired",
            "quarantined",
            "quarantines",
            "passed_over",
            "namespaces_retrying",
            "namespaces_ahead",
            "attempt_pauses",
            "attempts_undone",
            "permit_waiting",
            "binds_in_flight",
            "unknown_binds",
            "conflicts_true",
            "conflicts_false",
            "class_hits",
            "class_misses",
            "preemption_attempts",
        ),
        0,
    )
    pending = dict.fromkeys(("active", "backoff", "unschedulable", "gated", "gang"), 0) | fields.pop("pending", {})
    empty: dict[str, Any] = {"unschedulable_by_plugin": {}, "incoming": {}, "events_in_flight": {}, "unsigned": {}}
    limits = {"bind_limit": 16, "bind_unloaded_s": 0.0, "cycle_limit": 1}
    return {**nothing, **empty, **limits, "hints": {}, "is_lease_held": True, "pending": pending, **fields}


def test_every_statistic_equals_what_happened() -> None:
    async def scene(cluster: Cluster) -> None:
        await cluster.add_pod("late", cpu="8")
        await cluster.add_pod("later", cpu="8")
        await cluster.add_pod("gated", schedulingGates=[{"name": "g"}])
        await cluster.settle(20.0)
        await cluster.add_node("d", cpu="1")
        await cluster.add_pod("brief", cpu="100m")
        await cluster.settle(5.0)
        await cluster.delete_pod("brief")
        await cluster.settle(5.0)
        found = msgspec.to_builtins(read(cluster.program), enc_hook=dict, str_keys=False)
        for domain in found["domains"].values():
            del domain["plugin_metrics"], domain["records"]
        forecast = counted(
            pending={"unschedulable": 2, "gated": 1},
            unschedulable_by_plugin={"NodeResourcesFit": 2, "SchedulingGates": 1},
            incoming={
                ("active", "UnschedulablePodAdd"): 4,
                ("gated", "UnschedulablePodAdd"): 1,
                ("active", "AssignedPodDelete"): 1,  # room that came free: of two equal pods one is tried again
                ("unschedulable", "ScheduleAttemptFailure"): 3,
            },
            hint_calls=2,
            class_hits=1,
            class_misses=4,
            preemption_attempts=3,
        )
        assert found.pop("domains") == {"forecast": forecast, "gpu": counted()}
        reflectors = found.pop("reflectors")
        quiet = {"lists": 1, "events": 0, "errors": 0, "malformed": 0, "lag_s": 0.0}
        assert reflectors.pop("nodes") == {**quiet, "events": 1}
        assert reflectors.pop("pods") == {**quiet, "events": reflectors_of_pods(cluster)}
        absent = {kind.resource for kind in ObjectKind if kind.definition.is_optional}
        absent -= {
            ObjectKind.RESOURCE_SLICE.resource,
            ObjectKind.RESOURCE_POLICY.resource,
            ObjectKind.SLICE_SET.resource,
        }  # served; of the domain job only; of loans between processes only
        assert [reflectors.pop(kind) for kind in sorted(absent)] == [{**quiet, "lists": 0}] * len(absent)
        assert set(map(str, reflectors.values())) == {str(quiet)}
        assert len(reflectors) == 14
        assert found.pop("audits") in (0, 1)  # the first comes at a random moment
        assert found == {
            "cached": {"nodes": 4, "pods": 1, "assumed_pods": 0},
            "events": {"stored": 5, "aggregated": 0, "dropped": 0},
            "audit_differences": 0,
            "throttled": 0,
            "event_durations": {},
            "volume_writes": {},
            "calls_pending": {"pod_status_patch": 0, "pod_binding": 0},
            "calls_ended": {("pod_status_patch", "success"): 3, ("pod_status_patch", "error"): 0},
            "status_writes": {},
            "statuses_pending": 0,
            "background_tasks": {("GpuShare", "gpu"): {"failures": 0, "is_running": True}},
            "judge": None,
            "leases": {},
            "reload": None,
            "requests": None,
            "log_lines_dropped": 0,
            "certificate_expiry_s": None,
        }

    play(scene, prepare=three_nodes)


def reflectors_of_pods(cluster: Cluster) -> int:
    """Pods that came, were bound, were told, and went, as the watch has brought them."""
    return cluster.program.reflectors["pods"].statistics().events


def waiting(cluster: Cluster, name: str, state: str, **fields: Any) -> dict[str, Any]:
    """One line of the queue; nothing but what is named."""
    nothing = {"priority": 0, "qos": "Burstable", "attempts": 0, "waitingS": 10.0, "retryInS": 0.0, "plugins": ()}
    return {
        "domain": "forecast",
        "state": state,
        "namespace": "default",
        "name": name,
        "uid": cluster.program.pods.uid_of(f"default/{name}"),
        **nothing,
        "node": "",
        "message": "",
        **fields,
    }


def test_queue_is_listed_by_waiting_time_with_assumed_pods_last() -> None:
    async def scene(cluster: Cluster) -> None:
        await cluster.add_pod("late", cpu="8")
        await cluster.settle(5.0)
        await cluster.add_pod("gated", schedulingGates=[{"name": "g"}])
        await cluster.add_pod("odd", tolerations=[{"key": "k", "operator": "Exists"}] * 300)
        await cluster.settle(10.0)
        cluster.transport.bind_s = 60.0
        await cluster.add_pod("going", cpu="100m")
        await cluster.settle(2.0)
        queues = ProgramQueues(cluster.program, "me")
        found = msgspec.to_builtins(queues.queue(domain="forecast", limit=10))
        nothing = dict.fromkeys(("active", "backoff", "gang", "quarantined", "permit"), 0)
        counts = {**nothing, "unschedulable": 1, "gated": 1, "refused": 1, "binding": 1}
        late, odd, gated, going = found["pods"]
        preemption = "0/3 nodes are available: 3 Preemption is not helpful for scheduling."
        message = f"0/3 nodes are available: 3 Insufficient cpu. no new claims to deallocate, preemption: {preemption}"
        assert late == waiting(
            cluster,
            "late",
            "unschedulable",
            waitingS=17.0,
            retryInS=283.0,
            attempts=1,
            plugins=("NodeResourcesFit",),
            message=message,
        )
        first, second = sorted((odd, gated), key=lambda one: str(one["state"]))
        held = "waiting for scheduling gates: [g]"
        assert first == waiting(
            cluster, "gated", "gated", waitingS=12.0, retryInS=0.0, plugins=("SchedulingGates",), message=held
        )
        odd = waiting(cluster, "odd", "refused", waitingS=12.0, qos="BestEffort", message=second["message"])
        assert second == odd
        assert "spec.tolerations" in second["message"]
        assert going == waiting(cluster, "going", "binding", waitingS=2.0, attempts=1)
        domain = {"domain": "forecast", "schedulerNames": ("forecast-scheduler",), "isLeading": True, "counts": counts}
        domain |= {"bindsInFlight": 1, "bindLimit": 16, "cycleLimit": 1}
        assert {key: value for key, value in found.items() if key != "pods"} == {
            "domains": (domain,),
            "leftOut": 0,
            "elsewhere": (),
            "identity": "me",
        }
        few = queues.queue(domain=None, limit=3)
        assert ([one.domain for one in few.domains], few.left_out, len(few.pods)) == (["forecast", "gpu"], 1, 3)
        none = queues.queue(domain="gpu", limit=3)
        assert ([one.domain for one in none.domains], none.left_out, none.pods) == (["gpu"], 0, ())

    play(scene, prepare=three_nodes)
