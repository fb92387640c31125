"""Pods that go, come again, are resized in every state, and want what others want."""

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
"""CPU of the pods that fill two nodes, half of them under a budget, and of the urgent ones that then want to go there."""
NEXT_IN_ZONE = 9
"""From a node to another plain one of its zone."""
INFEASIBLE_MILLI = 100_000
EDITED = 12
ENDED = 10
WANTED = tuple(number for number in range(4, 37) if number % 10 not in (7, 8, 9))
"""Plain nodes: more than the program begins to keep promises for."""
DEAR_PODS, DEAR_TERMS = 70, 60
"""Their product is more than an event may cost."""


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
    """While no watch is open, and gone from history before one is."""
    pod = context.any_pod()
    if pod is not None:
        context.server.drop_watches()
        await context.world.user.delete_pod(pod)
        context.server.compact()
    return pod is not None


async def _delete_while_decided(context: RunContext) -> bool:
    """Pods of a burst go while their cycles wait for an answer, or their binds are on the way."""
    names = [f"brief-{context.mark()}" for _ in range(6)]
    for name in names:
        await context.world.add_pod(name, scheduler="forecast-scheduler")
    for name in names:
        await context.pause(0.0, 0.008)
        await context.world.user.delete_named(name)
    return True


async def _recreate_while_decided(context: RunContext) -> bool:
    """Pods of a burst go, and others of their names come at once: an old decision must not bind a new pod."""
    names = [f"again-{context.mark()}" for _ in range(5)]
    for name in names:
        await context.world.add_pod(name, scheduler="forecast-scheduler")
    for name in names:
        await context.pause(0.0, 0.02)
        await context.world.user.delete_named(name)
        await context.world.add_pod(name, scheduler=context.rng.choice(("forecast-scheduler", "job-scheduler")))
    return True


async def _resize_down(context: RunContext) -> bool:
    """Bound pods take less than before: their room must come free, and nothing more."""
    placed = [p for p in context.world.pods() if p.node and not p.is_deleting and 100 < p.requests.get(CPU, 0) <= 500]
    for pod in context.rng.sample(placed, min(3, len(placed))):
        await context.world.kubelets.resize(pod, f"{pod.requests[CPU] // 2}m")
    return bool(placed)


async def _resize_up(context: RunContext) -> bool:
    """Bound pods take more than before; more pods want to go where they are."""
    placed = [p for p in context.world.pods() if p.node and not p.is_deleting and 0 < p.requests.get(CPU, 0) <= 500]
    context.rng.shuffle(placed)
    for pod in placed[:4]:
        await context.world.kubelets.resize(pod, f"{pod.requests[CPU] + 700}m")
    for node in sorted({pod.node for pod in placed[:4]}):
        await context.world.crowds.add(node, 3)
    return bool(placed)


async def _resize_waiting(context: RunContext) -> bool:
    """Pods are resized while they are queued, held at Permit, assumed or on the wire; then others come after the room.

    On the node with most room, for where there is none nobody is on his way.
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
    """Of the nodes that crowds want."""
    used: Counter[str] = Counter({f"node-{number}": 0 for number in CROWDED})
    for pod in context.world.pods():
        used[pod.node] += pod.requests.get(CPU, 0)
    return min((f"node-{number}" for number in CROWDED), key=lambda node: used[node])


async def _shrink_infeasible(context: RunContext) -> bool:
    """The only event that helps this pod is its own update."""
    pod = context.any_pod(lambda pod: not pod.node and pod.requests.get(CPU, 0) > INFEASIBLE_MILLI)
    return pod is not None and await context.world.kubelets.resize(pod, "100m")


async def _open_gate(context: RunContext) -> bool:
    pod = context.any_pod(lambda pod: bool(pod.gates))
    return pod is not None and await context.world.open_gates(pod)


async def _comply_with_policy(context: RunContext) -> bool:
    """One of those that the API server refuses, at whatever stage it is."""
    pod = context.any_pod(lambda pod: context.bind_checker.policies.policy_of(pod.name) == OWNER)
    return pod is not None and await context.world.comply_with_policy(pod)


async def _bind_from_outside(context: RunContext) -> bool:
    for _ in range(3):
        await context.world.external_actors.bind_one_of_ours()
    return True


async def _place_giants(context: RunContext) -> bool:
    """Valid pods of absurd size, placed by somebody else: what they hold counts all the same."""
    node = f"node-{context.rng.choice(CROWDED)}"
    giant = await context.world.external_actors.place_giant(node)
    await context.until(lambda: context.replicas.knows_placed(giant))
    await context.world.external_actors.add_beside_giant(node)
    return True


async def _crowd(context: RunContext) -> bool:
    """More pods than fit want one node, all at once: some have no other candidate."""
    await context.world.crowds.add(f"node-{context.rng.choice(CROWDED)}", 12, is_mixed=True)
    return True


async def _preempt_protected(context: RunContext) -> bool:
    """Urgent pods want two nodes that are full, in part of pods under budgets."""
    pair = await fill_node_pair(context)
    await add_urgent_pods(context, pair)
    await _add_unreachable_pods(context, pair)
    return True


async def fill_node_pair(context: RunContext) -> str:
    """Fills two nodes; the label that names them."""
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
    """Still more urgent pods.

    For some, one node of the two is out of reach whoever goes: by an anti-affinity in its zone, or by their volume's
    zone.
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
    """Less urgent pods hold what urgent ones then want to have."""
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
    """Fractions, or whole devices, and in one of two cases beside an anti-affinity that must be asked row by row."""
    node = f"node-{context.rng.choice(GPU_NODES)}"
    if context.rng.random() < 0.6:
        return await _contend(
            context, "gpu-scheduler", node, _anti_affinity() if context.rng.random() < 0.5 else {}, milli="900"
        )
    main = {"name": "main", "image": "app-0:v1", "resources": {"limits": {"nvidia.com/gpu": "2"}}}
    return await _contend(context, "gpu-scheduler", node, {"containers": [main]})


async def _contend_apart(context: RunContext) -> bool:
    """Pods that bear none of their kind beside them."""
    node = f"node-{context.rng.choice(CROWDED)}"
    return await _contend(context, "forecast-scheduler", node, _anti_affinity() | {"volumes": [_DISK]})


async def _contend_for_claims(context: RunContext) -> bool:
    """Pods of one claim that is for one of them, wherever it stands; one follows the other."""
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
    """Urgent pods want more nodes at once than are commonly promised to anybody."""
    for number in WANTED:
        await context.world.crowds.add(f"node-{number}", 1, cpu="3500m")
    await context.pause(0.5, 1.5)
    for number in WANTED:
        await context.world.add_small_pod(
            f"node-{number}", {"containers": [_LARGE]}, is_urgent=True, scheduler="forecast-scheduler"
        )
    await context.pause(0.0, 0.2)
    await _outbid(context, [f"node-{number}" for number in context.rng.sample(WANTED, 4)])
    return True


async def _outbid(context: RunContext, nodes: Sequence[str]) -> None:
    """Pods that are more urgent than the urgent want what these wait for: who was promised a node looks for another."""
    for node in nodes:
        await context.world.add_small_pod(
            node,
            {"containers": [_LARGE]},
            is_urgent=True,
            scheduler="forecast-scheduler",
            priority="system-node-critical",
        )


async def _add_oversized_pods(context: RunContext) -> bool:
    """Pods of absurd size that wait: their condition says so, and they are tried once they are readable."""
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
    """Owners add tolerations to pods that wait, remove one of their gates, or write something that helps nobody."""
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
    """One namespace's pods that fit nowhere have so many terms that no event asks about them: all are tried again in turns."""
    node = f"node-{context.rng.choice(CROWDED)}"
    terms = [
        {"topologyKey": f"sim/t{at}", "labelSelector": {"matchLabels": {"absent": str(at)}}} for at in range(DEAR_TERMS)
    ]
    names = []
    for at in range(DEAR_PODS):
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


async def _mark_mistaken(context: RunContext) -> bool:
    """Preferences that do not parse: the API server takes them, and their pods' conditions say why they wait."""
    wrong = [
        {"key": "rank", "operator": "Gt", "values": ["many"]},
        {"key": "zone", "operator": "In", "values": ["no label value!"]},
        {"key": "zone", "operator": "In", "values": ["z" * 70]},
    ]
    terms = [{"weight": 1, "preference": {"matchExpressions": [one]}} for one in context.rng.sample(wrong, 2)]
    spec = {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}}
    name = await context.world.add_small_pod("", spec, is_urgent=False, scheduler="forecast-scheduler")
    await context.pause(2.0, 5.0)  # it fits on several nodes: with one alone nobody reads its preferences
    await context.world.user.delete_named(name)
    return True


async def _complete(context: RunContext) -> bool:
    """Pods end by themselves, as those of jobs do: their room comes free, and they stay on record."""
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
    """A pod whose deletion nobody need hear of but by the audit."""
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
    Disruption("foreign binds", _bind_from_outside),
    Disruption("giants placed", _place_giants),
    Disruption("crowd for one node", _crowd),
    Disruption("protected pods pressed", _preempt_protected, 5),
    Disruption("ports contended for", _contend_for_ports),
    Disruption("devices contended for", _contend_for_devices),
    Disruption("claims contended for", _contend_for_claims),
    Disruption("company contended for", _contend_apart),
    Disruption("many nodes promised", _overflow_nominations, 2),
    Disruption("absurd pods waiting", _add_oversized_pods, 3),
    Disruption("preferences mistaken", _mark_mistaken, 2),
    Disruption("hints made dear", _add_expensive_pods, 1),
    Disruption("waiting pods edited", _edit_waiting),
)
