"""References of the plugins that look at the node itself: taints, names, affinity, ports, images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.reference.matching import (
    has_untolerated_taint,
    is_tolerated,
    node_affinity,
    node_selector_matches,
    node_term_matches,
    required_node_affinity_matches,
)
from tests.reference.world import SKIP, PodState, Refused, Silent, Skip, World, in_proportion, unresolvable

Json = Mapping[str, Any]
REQUIRED, PREFERRED = (f"{when}DuringSchedulingIgnoredDuringExecution" for when in ("required", "preferred"))


class NodeUnschedulable(Silent):
    """Source: plugins/nodeunschedulable/node_unschedulable.go."""

    name, filters = "NodeUnschedulable", True
    taint: Json = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}  # noqa: RUF012  (never written)

    def refusal(self, state: Any, world: World, pod: PodState, node: str) -> Refused | None:
        if not world.nodes[node].document["spec"].get("unschedulable"):
            return None
        if is_tolerated(pod.document["spec"].get("tolerations") or (), self.taint):
            return None
        return unresolvable("node(s) were unschedulable")


class NodeName(Silent):
    """Source: plugins/nodename/node_name.go."""

    name, filters = "NodeName", True

    def refusal(self, state: Any, world: World, pod: PodState, node: str) -> Refused | None:
        if pod.node in ("", node):
            return None
        return unresolvable("node(s) didn't match the requested node name")


class NodeDeclaredFeatures(Silent):
    """Source: plugins/nodedeclaredfeatures/nodedeclaredfeatures.go, component-helpers nodedeclaredfeatures/features."""

    name, filters = "NodeDeclaredFeatures", True

    def prepare(self, world: World, pod: PodState) -> Any:
        spec = pod.document["spec"]
        containers = (*spec["containers"], *(spec.get("initContainers") or ()))
        rules = [rule for container in containers for rule in container.get("restartPolicyRules") or ()]
        needed = set()
        if any(rule["action"] == "RestartAllContainers" for rule in rules):
            needed.add("RestartAllContainersOnContainerExits")
        if spec.get("hostNetwork") and spec.get("hostUsers") is False:
            needed.add("UserNamespacesHostNetworkSupport")
        return needed or SKIP

    def refusal(self, state: Any, world: World, pod: PodState, node: str) -> Refused | None:
        if state <= set(world.nodes[node].document["status"].get("declaredFeatures") or ()):
            return None
        return unresolvable("node(s) didn't match Pod's required features")


class TaintToleration(Silent):
    """Source: plugins/tainttoleration/taint_toleration.go."""

    name, filters, scores = "TaintToleration", True, True

    def refusal(self, state: Any, world: World, pod: PodState, node: str) -> Refused | None:
        if has_untolerated_taint(pod.document, world.nodes[node].taints):
            return unresolvable("node(s) had untolerated taint(s)")
        return None

    def scored(self, world: World, pod: PodState, feasible: Sequence[str]) -> dict[str, int] | Skip:
        tolerations = [
            t
            for t in pod.document["spec"].get("tolerations") or ()
            if t.get("effect") in (None, "", "PreferNoSchedule")
        ]
        raw = {
            node: sum(
                taint["effect"] == "PreferNoSchedule" and not is_tolerated(tolerations, taint)
                for taint in world.nodes[node].taints
            )
            for node in feasible
        }
        return in_proportion(raw, reverse=True)


class NodeAffinity(Silent):
    """Source: plugins/nodeaffinity/node_affinity.go."""

    name, filters, scores = "NodeAffinity", True, True

    def __init__(self, args: Json) -> None:
        added: Json = args.get("addedAffinity") or {}
        self._added_required = added.get(REQUIRED)
        self._added_preferred = added.get(PREFERRED) or ()

    def prepare(self, world: World, pod: PodState) -> Any:
        required = node_affinity(pod.document).get(REQUIRED)
        if required is None and self._added_required is None and not pod.document["spec"].get("nodeSelector"):
            return SKIP
        if required is None:
            return None
        named: set[str] = set()
        for term in required["nodeSelectorTerms"]:
            those = [
                set(f["values"])
                for f in term.get("matchFields") or ()
                if f["key"] == "metadata.name" and f["operator"] == "In"
            ]
            if not those:
                return None
            named |= set.intersection(*those)
        return frozenset(named) if named else unresolvable("pod affinity terms conflict")

    def refusal(self, state: Any, world: World, pod: PodState, node: str) -> Refused | None:
        labels = world.nodes[node].labels
        if self._added_required is not None and not node_selector_matches(self._added_required, labels, node):
            return unresolvable("node(s) didn't match scheduler-enforced node affinity")
        if not required_node_affinity_matches(pod.document, labels, node):
            return unresolvable("node(s) didn't match Pod's node affinity/selector")
        return None

    def scored(self, world: World, pod: PodState, feasible: Sequence[str]) -> dict[str, int] | Skip:
        preferences = [*self._added_preferred, *(node_affinity(pod.document).get(PREFERRED) or ())]
        if not preferences:
            return SKIP
        raw = {
            node: sum(
                p["weight"] for p in preferences if node_term_matches(p["preference"], world.nodes[node].labels, node)
            )
            for node in feasible
        }
        return in_proportion(raw, reverse=False)


class NodePorts(Silent):
    """Source: plugins/nodeports/node_ports.go, framework/types.go HostPortInfo."""

    name, filters = "NodePorts", True

    def prepare(self, world: World, pod: PodState) -> Any:
        return None if any(host_ports(pod)) else SKIP

    def refusal(self, state: Any, world: World, pod: PodState, node: str) -> Refused | None:
        taken = {port for other in world.on(node) for port in host_ports(other)}
        for protocol, number, address in host_ports(pod):
            for other_protocol, other_number, other_address in taken:
                is_same = (protocol, number) == (other_protocol, other_number)
                if is_same and (address == other_address or "0.0.0.0" in (address, other_address)):
                    return Refused(("node(s) didn't have free ports for the requested pod ports",))
        return None


def host_ports(pod: PodState) -> Iterator[tuple[str, int, str]]:
    """Protocol, port, address of what containers and sidecars take of the node."""
    spec = pod.document["spec"]
    sidecars = [c for c in spec.get("initContainers") or () if c.get("restartPolicy") == "Always"]
    for container in (*spec["containers"], *sidecars):
        for port in container.get("ports") or ():
            if port.get("hostPort"):
                yield port.get("protocol") or "TCP", port["hostPort"], port.get("hostIP") or "0.0.0.0"


class ImageLocality(Silent):
    """Source: plugins/imagelocality/image_locality.go."""

    name, scores = "ImageLocality", True
    least, most = 23 * 1024 * 1024, 1000 * 1024 * 1024
    """Bytes: of all images, and of each container's."""

    def scored(self, world: World, pod: PodState, feasible: Sequence[str]) -> dict[str, int] | Skip:
        sizes, holders = self._images(world)
        spec = pod.document["spec"]
        containers = [*(spec.get("initContainers") or ()), *spec["containers"]]
        images = [_tagged(c["image"]) for c in containers]
        images += [_tagged(v["image"]["reference"]) for v in pod.volumes if "image" in v]
        most = self.most * len(containers)
        scores = {}
        for node in feasible:
            found = [image for image in images if node in holders.get(image, ())]
            total = sum(int(sizes[image] * (len(holders[image]) / len(world.nodes))) for image in found)
            scores[node] = 100 * (min(max(total, self.least), most) - self.least) // (most - self.least)
        return scores

    def _images(self, world: World) -> tuple[dict[str, int], dict[str, set[str]]]:
        """Size as the first node told it, and the nodes that have the image."""
        sizes: dict[str, int] = {}
        holders: dict[str, set[str]] = {}
        for node in world.nodes.values():
            for image in node.document["status"].get("images") or ():
                for name in image["names"]:
                    sizes.setdefault(name, image["sizeBytes"])
                    holders.setdefault(name, set()).add(node.name)
        return sizes, holders


def _tagged(image: str) -> str:
    return image if image.rfind(":") > image.rfind("/") else f"{image}:latest"
