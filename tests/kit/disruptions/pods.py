"""Disruptions of pods: deleted, recreated, resized in every state, and in conflict with other pods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from multisched.model.objects import CPU, Pod
from tests.kit.disruptions.run_context import Disruption, RunContext
from tests.kit.plugins.permit_holds import HELD
from tests.kit.wire.faults import FOREIGN
from tests.kit.world.budgets import FREE, PROTECTED
from tests.kit.world.disks import ZONED
from tests.kit.world.nodes import CROWDED, GPU_NODES, PAIRS
from tests.kit.world.policies import OWNER
from tests.kit.world.traits import SOLE

PAIR_FILL, PAIR_URGENT = ("900m",) * 8, ("1", "1", "1500m")
"""CPU of the pods that fill two nodes, half of them under a budget, and of the urgent ones created next."""
NEXT_IN_ZONE = 9
"""Difference between the numbers of two plain nodes of one zone."""
INFEASIBLE_MILLI = 100_000
EDITED = 12
ENDED = 10
CONTESTED_NODES = tuple(number for number in range(4, 37) if number % 10 not in (7, 8, 9))
"""Plain nodes: more than the program keeps nominations for by default."""
EXPENSIVE_PODS, EXPENSIVE_TERMS = 70, 60
"""Pods, and terms of each: their product exceeds the cost limit of an event."""


async def _delete(context: RunContext) -> bool:
    pod = context.any_pod()
    if pod is not None:
        await context.world.user.delete_pod(pod)
    return pod is not None


async def _recreate(context: RunContext) -> bool:
    pod = context.any_pod(lambda pod: pod.namespace == "default")
    if pod is not None:
        await context.world.user.delete_pod(pod)
        await context.world.add_pod(pod.name)
    return pod is not None


async def _delete_unseen(context: RunContext) -> bool:
    """Deletes a pod while no watch is open, and compacts history before one is."""
    pod = context.any_pod()
    if pod is not None:
        context.server.drop_watches()
        await context.world.user.delete_pod(pod)
        context.server.compact()
    return pod is not None


async def _delete_while_decided(context: RunContext) -> bool:
    """Deletes pods of a burst while their cycles wait for a response, or their binds are in flight."""
    names = [f"brief-{context.mark()}" for _ in range(6)]
    for name in names:
        await context.world.add_pod(name, scheduler="forecast-scheduler")
    for name in names:
        await context.pause(0.0, 0.008)
        await context.world.user.delete_named(name)
    return True


async def _recreate_while_decided(context: RunContext) -> bool:
    """Deletes pods of a burst and recreates them under the same names: an old decision must not bind a new pod."""
    names = [f"again-{context.mark()}" for _ in range(5)]
    for name in names:
        await context.world.add_pod(name, scheduler="forecast-scheduler")
    for name in names:
        await context.pause(0.0, 0.02)
        await context.world.user.delete_named(name)
        await context.world.add_pod(name, scheduler=context.rng.choice(("forecast-scheduler", "job-scheduler")))
    return True


async def _resize_down(context: RunContext) -> bool:
    """Resizes bound pods down: exactly the difference becomes free."""
    placed = [p for p in context.world.pods() if p.node and not p.is_deleting and 100 < p.requests.get(CPU, 0) <= 500]
    for pod in context.rng.sample(placed, min(3, len(placed))):
        await context.world.kubelets.resize(pod, f"{pod.requests[CPU] // 2}m")
    return bool(placed)


async def _resize_up(context: RunContext) -> bool:
    """Resizes bound pods up, and creates more pods for their nodes."""
    placed = [p for p in context.world.pods() if p.node and not p.is_deleting and 0 < p.requests.get(CPU, 0) <= 500]
    context.rng.shuffle(placed)
    for pod in placed[:4]:
        await context.world.kubelets.resize(pod, f"{pod.requests[CPU] + 700}m")
    for node in sorted({pod.node for pod in placed[:4]}):
        await context.world.crowds.add(node, 3)
    return bool(placed)


async def _resize_waiting(context: RunContext) -> bool:
    """Resizes pods while they are queued, at Permit, assumed or being bound, then creates others for the room.

    Uses the node with most room: pods for a full node are not in these states.
    """
    node = _emptiest(context)
    is_held = context.rng.random() < 0.5
    names = await context.world.crowds.add(node, 4, cpu="900m", prefix=HELD if is_held else "")
    await context.pause(0.0, 0.08)
    for name in names:
        pod = context.bind_checker.pods().get(f"default/{name}")
        if pod is not None:
            await context.world.kubelets.resize(pod, context.rng.choice(("1400m", "1900m", "300m")))
    await context.pause(0.05, 0.3)
    await context.world.crowds.add(node, 6)
    return True


def _emptiest(context: RunContext) -> str:
    """Returns the node with most room, of those that crowds use."""
    used: Counter[str] = Counter({f"node-{number}": 0 for number in CROWDED})
    for pod in context.world.pods():
        used[pod.node] += pod.requests.get(CPU, 0)
    return min((f"node-{number}" for number in CROWDED), key=lambda node: used[node])


async def _shrink_infeasible(context: RunContext) -> bool:
    """Resizes down a pod that fits on no node: only its own update helps it."""
    pod = context.any_pod(lambda pod: not pod.node and pod.requests.get(CPU, 0) > INFEASIBLE_MILLI)
    return pod is not None and await context.world.kubelets.resize(pod, "100m")


async def _open_gate(context: RunContext) -> bool:
    pod = context.any_pod(lambda pod: bool(pod.gates))
    return pod is not None and await context.world.open_gates(pod)


async def _comply_with_policy(context: RunContext) -> bool:
    """Corrects a pod that the API server refuses, in any state."""
    pod = context.any_pod(lambda pod: context.bind_checker.policies.policy_of(pod.name) == OWNER)
    return pod is not None and await context.world.comply_with_policy(pod)


async def _bind_externally(context: RunContext) -> bool:
    for _ in range(3):
        await context.world.external_actors.bind_one_of_ours()
    return True


async def _place_giants(context: RunContext) -> bool:
    """Places oversized but valid pods of another scheduler: what they hold still counts."""
    node = f"node-{context.rng.choice(CROWDED)}"
    giant = await context.world.external_actors.place_giant(node)
    await context.until(lambda: context.replicas.knows_placed(giant))
    await context.world.external_actors.add_beside_giant(node)
    return True


async def _crowd(context: RunContext) -> bool:
    """Creates more pods for one node at once than fit: some have no other candidate."""
    await context.world.crowds.add(f"node-{context.rng.choice(CROWDED)}", 12, is_mixed=True)
    return True


async def _preempt_protected(context: RunContext) -> bool:
    """Creates urgent pods for two full nodes some of whose pods are under budgets."""
    pair = await fill_node_pair(context)
    await add_urgent_pods(context, pair)
    await _add_unreachable_pods(context, pair)
    return True


async def fill_node_pair(context: RunContext) -> str:
    """Fills two nodes. Returns the label value that selects them."""
    pair = context.rng.choice(PAIRS)
    apps = [*PROTECTED * 2, *FREE * 2]
    context.rng.shuffle(apps)
    names = [
        await context.world.add_to_pair(pair, cpu, app, is_urgent=False)
        for cpu, app in zip(PAIR_FILL, apps, strict=True)
    ]
    await context.until(lambda: all(pod.node for pod in context.world.pods() if pod.name in names))
    return pair


async def add_urgent_pods(context: RunContext, pair: str) -> None:
    for cpu in PAIR_URGENT:
        await context.world.add_to_pair(pair, cpu, context.rng.choice(FREE), is_urgent=True)


async def _add_unreachable_pods(context: RunContext, pair: str) -> None:
    """Creates more urgent pods. For some, evictions cannot help on one of the two nodes: because of an anti-affinity in its zone,
    or the zone of their volume.
    """
    beside = int(pair.removeprefix("pair-")) - NEXT_IN_ZONE
    unborne = await context.world.add_small_pod(
        f"node-{beside}", {}, is_urgent=True, scheduler="forecast-scheduler", labels={"unborne": pair}
    )
    await context.until(lambda: any(pod.node for pod in context.world.pods() if pod.name == unborne))
    term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"unborne": pair}}}
    far = {"name": "v0", "persistentVolumeClaim": {"claimName": f"zoned-{context.rng.randrange(ZONED)}"}}
    for rule in (
        {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}},
        {"volumes": [far]},
    ):
        await context.world.add_small_pod(
            "",
            {"nodeSelector": {"pair": pair}, **rule},
            is_urgent=True,
            scheduler="forecast-scheduler",
            cpu="1",
            priority="system-node-critical",
        )


async def _contend(context: RunContext, scheduler: str, node: str, spec: Mapping[str, Any], milli: str = "") -> bool:
    """Creates less urgent pods that hold what urgent pods then need."""
    low = [
        await context.world.add_small_pod(node, spec, is_urgent=False, scheduler=scheduler, milli=milli)
        for _ in range(6)
    ]
    await context.until(lambda: any(pod.node for pod in context.world.pods() if pod.name in low))
    for _ in range(2):
        await context.world.add_small_pod(node, spec, is_urgent=True, scheduler=scheduler, milli=milli)
    await context.pause(0.0, 0.2)
    await context.world.add_small_pod(
        node, spec, is_urgent=True, scheduler=scheduler, milli=milli, priority="system-node-critical"
    )
    await context.pause(1.0, 4.0)
    return True


async def _contend_for_ports(context: RunContext) -> bool:
    port = {"containerPort": 80, "hostPort": 9_970}
    main = {"name": "main", "image": "app-0:v1", "resources": {"requests": {"cpu": "50m"}}, "ports": [port]}
    return await _contend(context, "forecast-scheduler", f"node-{context.rng.choice(CROWDED)}", {"containers": [main]})


async def _contend_for_devices(context: RunContext) -> bool:
    """Uses fractions or whole devices; in half of the cases of fractions with an anti-affinity that must be evaluated row by
    row.
    """
    node = f"node-{context.rng.choice(GPU_NODES)}"
    if context.rng.random() < 0.6:
        return await _contend(
            context, "gpu-scheduler", node, _anti_affinity() if context.rng.random() < 0.5 else {}, milli="900"
        )
    main = {"name": "main", "image": "app-0:v1", "resources": {"limits": {"nvidia.com/gpu": "2"}}}
    return await _contend(context, "gpu-scheduler", node, {"containers": [main]})


async def _contend_by_anti_affinity(context: RunContext) -> bool:
    """Uses pods that exclude each other by anti-affinity."""
    node = f"node-{context.rng.choice(CROWDED)}"
    return await _contend(context, "forecast-scheduler", node, _anti_affinity() | {"volumes": [_DISK]})


async def _contend_for_claims(context: RunContext) -> bool:
    """Uses pods of one ReadWriteOncePod claim, one after the other."""
    spec = {"volumes": [{"name": "v0", "persistentVolumeClaim": {"claimName": context.rng.choice(SOLE)}}]}
    names: list[str] = []

    def placed() -> list[Pod]:
        return [pod for pod in context.world.pods() if pod.node and pod.name in names]

    for _ in range(3):
        names += [
            await context.world.add_small_pod("", spec, is_urgent=False, scheduler="forecast-scheduler")
            for _ in range(2)
        ]
        await context.until(lambda: bool(placed()))
        await context.pause(0.2, 1.0)
        for pod in placed():
            await context.world.user.delete_pod(pod)
    return True


def _anti_affinity() -> dict[str, Any]:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"absent": "yes"}}}
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


async def _overflow_nominations(context: RunContext) -> bool:
    """Creates urgent pods for more nodes at once than nominations are kept for by default."""
    for number in CONTESTED_NODES:
        await context.world.crowds.add(f"node-{number}", 1, cpu="3500m")
    await context.pause(0.5, 1.5)
    for number in CONTESTED_NODES:
        await context.world.add_small_pod(
            f"node-{number}", {"containers": [_LARGE]}, is_urgent=True, scheduler="forecast-scheduler"
        )
    await context.pause(0.0, 0.2)
    await _outbid(context, [f"node-{number}" for number in context.rng.sample(CONTESTED_NODES, 4)])
    return True


async def _outbid(context: RunContext, nodes: Sequence[str]) -> None:
    """Creates pods of a higher priority for nodes that are nominated to urgent pods: these need other nodes."""
    for node in nodes:
        await context.world.add_small_pod(
            node,
            {"containers": [_LARGE]},
            is_urgent=True,
            scheduler="forecast-scheduler",
            priority="system-node-critical",
        )


async def _add_oversized_pods(context: RunContext) -> bool:
    """Creates pods that are too large to be decoded: their condition reports it, and they are tried when they become readable."""
    tolerations = [{"key": f"t{at}", "operator": "Exists"} for at in range(300)]
    node = f"node-{context.rng.choice(CROWDED)}"
    names = [
        await context.world.add_small_pod(
            node, {"tolerations": tolerations}, is_urgent=False, scheduler="forecast-scheduler"
        )
        for _ in range(2)
    ]
    crowd = await context.world.crowds.add(node, 4)
    await context.pause(0.0, 0.05)
    for pod in [pod for pod in context.world.pods() if pod.name in (*names, *crowd)]:
        labels = {f"l{at}": "" for at in range(1_100)} if pod.name in crowd[:2] else {"seen": "yes"}
        await context.world.patch_pod(pod, {"metadata": {"labels": labels}})
    await context.pause(1.0, 3.0)
    for name in (*names, *crowd[:2]):
        await context.world.user.delete_named(name)
    return True


async def _edit_waiting(context: RunContext) -> bool:
    """Edits pending pods: adds tolerations, removes one of two gates, or writes something that does not help."""
    for at in range(3):
        gated = {"schedulingGates": [{"name": "test/one"}, {"name": "test/two"}]}
        await context.world.add_small_pod(f"node-{20 + at}", gated, is_urgent=False, scheduler="forecast-scheduler")
    await context.world.crowds.add(f"node-{context.rng.choice((9, 19))}", 2, scheduler="forecast-scheduler")
    await context.pause(1.0, 3.0)
    waiting = [pod for pod in context.world.pods() if not pod.node and not pod.is_deleting]
    for pod in context.rng.sample(waiting, min(len(waiting), EDITED)):
        patches: list[dict[str, Any]] = [
            {"metadata": {"labels": {"seen": f"{context.rng.randrange(9)}"}}},
            {"metadata": {"annotations": {"sim/seen": "yes"}}},
            {"spec": {"tolerations": [*_documents(pod), {"key": "sim/further", "operator": "Exists"}]}},
        ]
        if len(pod.gates) > 1:
            patches.append({"spec": {"schedulingGates": [{"name": pod.gates[0]}]}})
        await context.world.patch_pod(pod, context.rng.choice(patches))
        await context.pause(0.0, 0.4)
    return bool(waiting)


def _documents(pod: Pod) -> list[dict[str, str]]:
    fields = ("key", "operator", "value", "effect")
    return [{name: getattr(one, name) for name in fields if getattr(one, name)} for one in pod.spec.tolerations]


async def _add_expensive_pods(context: RunContext) -> bool:
    """Creates pods of one namespace that fit nowhere and have so many terms that no event evaluates them: all are retried in turns."""
    node = f"node-{context.rng.choice(CROWDED)}"
    terms = [
        {"topologyKey": f"sim/t{at}", "labelSelector": {"matchLabels": {"absent": str(at)}}}
        for at in range(EXPENSIVE_TERMS)
    ]
    names = []
    for at in range(EXPENSIVE_PODS):
        main = {"name": "main", "image": "app-0:v1", "resources": {"requests": {"cpu": f"{400 + at}"}}}
        affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
        spec = {"containers": [main], "affinity": affinity}
        names.append(await context.world.add_small_pod(node, spec, is_urgent=False, scheduler="forecast-scheduler"))
    await context.pause(1.0, 3.0)
    for _ in range(3):
        await context.world.nodes.patch(node, {"metadata": {"labels": {"nudge": f"{context.now_s():.0f}"}}})
        await context.pause(0.5, 2.0)
    for name in names:
        await context.world.user.delete_named(name)
    return True


async def _add_invalid_preferences(context: RunContext) -> bool:
    """Creates a pod with preferences that do not parse: the API server accepts them, and the pod's condition reports them."""
    wrong = [
        {"key": "rank", "operator": "Gt", "values": ["many"]},
        {"key": "zone", "operator": "In", "values": ["no label value!"]},
        {"key": "zone", "operator": "In", "values": ["z" * 70]},
    ]
    terms = [{"weight": 1, "preference": {"matchExpressions": [one]}} for one in context.rng.sample(wrong, 2)]
    spec = {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}}
    name = await context.world.add_small_pod("", spec, is_urgent=False, scheduler="forecast-scheduler")
    await context.pause(2.0, 5.0)  # it fits on several nodes: with one candidate, preferences are not evaluated
    await context.world.user.delete_named(name)
    return True


async def _complete(context: RunContext) -> bool:
    """Ends pods, as those of jobs do: their room becomes free, and the objects remain."""
    placed = [pod for pod in context.world.pods() if may_be_deleted_unseen(pod) and not pod.is_deleting]
    ended = context.rng.sample(placed, min(len(placed), ENDED))
    for pod in ended:
        await context.world.kubelets.end_pod(pod, context.rng.choice(("Succeeded", "Succeeded", "Failed")))
        await context.pause(0.0, 0.3)
    for node in sorted({pod.node for pod in ended[:3]}):
        await context.world.crowds.add(node, 3)
    return bool(ended)


_DISK = {"name": "v0", "gcePersistentDisk": {"pdName": "contested"}}
_LARGE = {"name": "main", "image": "app-1:v1", "resources": {"requests": {"cpu": "3"}}}


def may_be_deleted_unseen(pod: Pod) -> bool:
    """Reports whether the pod may be deleted without any watch event, so that only the audit detects it."""
    return bool(pod.node) and not pod.name.startswith(FOREIGN)


TABLE = (
    Disruption("pod deleted", _delete),
    Disruption("pod recreated", _recreate),
    Disruption("pods completed", _complete, 6),
    Disruption("pod deleted unseen", _delete_unseen),
    Disruption("pod deleted while decided", _delete_while_decided),
    Disruption("pod recreated while decided", _recreate_while_decided, 3),
    Disruption("pod resized down", _resize_down, 8),
    Disruption("pods resized up", _resize_up, 8),
    Disruption("waiting pods resized", _resize_waiting, 8),
    Disruption("infeasible pod shrunk", _shrink_infeasible),
    Disruption("gate opened", _open_gate),
    Disruption("refused pod mended", _comply_with_policy),
    Disruption("foreign binds", _bind_externally),
    Disruption("giants placed", _place_giants),
    Disruption("crowd for one node", _crowd),
    Disruption("protected pods pressed", _preempt_protected, 5),
    Disruption("ports contended for", _contend_for_ports),
    Disruption("devices contended for", _contend_for_devices),
    Disruption("claims contended for", _contend_for_claims),
    Disruption("company contended for", _contend_by_anti_affinity),
    Disruption("many nodes promised", _overflow_nominations, 2),
    Disruption("absurd pods waiting", _add_oversized_pods, 3),
    Disruption("preferences mistaken", _add_invalid_preferences, 2),
    Disruption("hints made dear", _add_expensive_pods, 1),
    Disruption("waiting pods edited", _edit_waiting),
)
