"""References of the volume plugins: restrictions, limits, zones, binding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.reference.amounts import quantity
from tests.reference.matching import node_selector_matches, selects
from tests.reference.world import SKIP, PodState, Refused, Silent, World, unresolvable

Json = Mapping[str, Any]
ZONE_LABELS = {
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region": "topology.kubernetes.io/region",
}
"""Label of a volume or node -> today's name of it."""
BOUND = "pv.kubernetes.io/bind-completed"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
NO_PROVISIONER = "kubernetes.io/no-provisioner"


def claim_names(pod: PodState) -> list[str]:
    return [v["persistentVolumeClaim"]["claimName"] for v in pod.volumes if "persistentVolumeClaim" in v]


def claims(world: World, pod: PodState) -> list[Json] | Refused:
    found = []
    for name in claim_names(pod):
        claim = world.named("pvcs", name, pod.namespace)
        if claim is None:
            return unresolvable(f'persistentvolumeclaim "{name}" not found')
        found.append(claim)
    return found


@dataclass(frozen=True, slots=True)
class RestrictionState:
    exclusive: frozenset[str]
    """The pod's claims that one pod at a time may use."""
    users: int


class VolumeRestrictions(Silent):
    """Source: plugins/volumerestrictions/volume_restrictions.go."""

    name, filters = "VolumeRestrictions", True

    def prepare(self, world: World, pod: PodState) -> Any:
        found = claims(world, pod)
        if isinstance(found, Refused):
            return found
        exclusive = {c["metadata"]["name"] for c in found if "ReadWriteOncePod" in c["spec"]["accessModes"]}
        in_use = {
            (other.namespace, name) for node in world.nodes for other in world.on(node) for name in claim_names(other)
        }
        users = sum((pod.namespace, name) in in_use for name in exclusive)
        has_disks = any(_is_disk(volume) for volume in pod.volumes)
        return RestrictionState(frozenset(exclusive), users) if has_disks or users else SKIP

    def moved(self, state: Any, world: World, pod: PodState, other: PodState, node: str, sign: int) -> Any:
        shared = sum(name in state.exclusive for name in claim_names(other))  # whatever the namespace, as upstream
        return RestrictionState(state.exclusive, state.users + sign * shared)

    def refusal(self, state: Any, world: World, pod: PodState, node: str) -> Refused | None:
        for other in world.on(node):
            if any(_is_same_disk(mine, theirs) for mine in pod.volumes for theirs in other.volumes):
                return Refused(("node(s) had no available disk",))
        if state.users > 0:
            why = "PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
            return Refused((f"node(s) unavailable due to {why}",))
        return None


def _is_disk(volume: Json) -> bool:
    return any(kind in volume for kind in ("gcePersistentDisk", "awsElasticBlockStore", "rbd", "iscsi"))


def _is_same_disk(mine: Json, theirs: Json) -> bool:
    """Two pods may share a disk that both only read, except an EBS volume."""
    kinds = [k for k in ("gcePersistentDisk", "awsElasticBlockStore", "rbd", "iscsi") if k in mine and k in theirs]
    for kind in kinds:
        a, b = mine[kind], theirs[kind]
        are_read_only = bool(a.get("readOnly") and b.get("readOnly"))
        match kind:
            case "gcePersistentDisk":
                is_same = a["pdName"] == b["pdName"] and not are_read_only
            case "awsElasticBlockStore":
                is_same = a["volumeID"] == b["volumeID"]
            case "iscsi":
                is_same = a["iqn"] == b["iqn"] and not are_read_only
            case _:
                is_shared = set(a["monitors"]) & set(b["monitors"])
                is_same = bool(is_shared) and (a["pool"], a["image"]) == (b["pool"], b["image"]) and not are_read_only
        if is_same:
            return True
    return False


class NodeVolumeLimits(Silent):
    """Source: plugins/nodevolumelimits/csi.go. In-tree volumes are not counted: no node here says that it migrates."""

    name, filters = "NodeVolumeLimits", True

    def prepare(self, world: World, pod: PodState) -> Any:
        migratable = ("gcePersistentDisk", "awsElasticBlockStore")
        if claim_names(pod) or any(kind in volume for volume in pod.volumes for kind in migratable):
            return None
        return SKIP

    def refusal(self, state: Any, world: World, pod: PodState, node: str) -> Refused | None:
        wanted = claims(world, pod)
        if isinstance(wanted, Refused):
            name = wanted.reasons[0].split('"')[1]
            return unresolvable(f"looking up PVC {pod.namespace}/{name}: {wanted.reasons[0]}")
        limits = _limits(world, node)
        new = _drivers(world, wanted)
        if not new or not limits:
            return None
        attached: dict[str, str] = {}
        for other in world.on(node):
            theirs = [world.named("pvcs", name, other.namespace) for name in claim_names(other)]
            attached |= _drivers(world, [claim for claim in theirs if claim is not None])
        for volume in attached:
            new.pop(volume, None)
        held = {**_attached(world, node), **attached}
        for driver in set(new.values()) & limits.keys():
            if sum(one == driver for one in (*held.values(), *new.values())) > limits[driver]:
                return Refused(("node(s) exceed max volume count",))
        return None


def _limits(world: World, node: str) -> dict[str, int]:
    found = world.named("csiNodes", node)
    drivers = found["spec"].get("drivers") or () if found is not None else ()
    return {
        d["name"]: d["allocatable"]["count"] for d in drivers if (d.get("allocatable") or {}).get("count") is not None
    }


def _drivers(world: World, those: Iterable[Json]) -> dict[str, str]:
    """Volume -> its driver: of the volume that is bound, else what the class would make."""
    found = {}
    for claim in those:
        volume = world.named("pvs", claim["spec"].get("volumeName") or "")
        if volume is not None:
            csi = volume["spec"].get("csi")
            if csi is not None:
                found[f"{csi['driver']}/{csi['volumeHandle']}"] = csi["driver"]
            continue
        storage_class = world.named("storageClasses", claim["spec"].get("storageClassName") or "")
        if storage_class is not None:
            key = (claim["metadata"]["namespace"], claim["metadata"]["name"])
            found[f"{storage_class['provisioner']}/{key}"] = storage_class["provisioner"]
    return found


def _attached(world: World, node: str) -> dict[str, str]:
    found = {}
    for one in world.objects("volumeAttachments"):
        spec = one["spec"]
        volume = world.named("pvs", spec["source"].get("persistentVolumeName") or "")
        if spec["nodeName"] == node and volume is not None and "csi" in volume["spec"]:
            found[f"{spec['attacher']}/{volume['spec']['csi']['volumeHandle']}"] = spec["attacher"]
    return found


class VolumeZone(Silent):
    """Source: plugins/volumezone/volume_zone.go."""

    name, filters = "VolumeZone", True

    def prepare(self, world: World, pod: PodState) -> Any:
        topologies: list[tuple[str, set[str]]] = []
        for claim_name in claim_names(pod):
            claim = world.named("pvcs", claim_name, pod.namespace)
            if claim is None:
                return unresolvable(f'persistentvolumeclaim "{claim_name}" not found')
            name = claim["spec"].get("volumeName") or ""
            if not name:
                refused = self._unbound(world, claim)
                if refused is not None:
                    return refused
                continue
            volume = world.named("pvs", name)
            if volume is None:
                return unresolvable(f'persistentvolume "{name}" not found')
            labels = volume["metadata"].get("labels") or {}
            topologies += [(key, set(labels[key].split("__"))) for key in ZONE_LABELS if key in labels]
        return topologies or SKIP

    def _unbound(self, world: World, claim: Json) -> Refused | None:
        name = claim["spec"].get("storageClassName") or ""
        if not name:
            return unresolvable("PersistentVolumeClaim had no pv name and storageClass name")
        storage_class = world.named("storageClasses", name)
        if storage_class is None:
            return unresolvable(f'storageclass.storage.k8s.io "{name}" not found')
        if storage_class["volumeBindingMode"] == "WaitForFirstConsumer":
            return None
        return unresolvable("PersistentVolume had no name")

    def refusal(self, state: Any, world: World, pod: PodState, node: str) -> Refused | None:
        labels = world.nodes[node].labels
        if not any(key in labels for key in ZONE_LABELS):
            return None
        for key, values in state:
            if labels.get(key, labels.get(ZONE_LABELS[key])) not in values:
                return unresolvable("node(s) had no available volume zone")
        return None


class VolumeBinding(Silent):
    """Source: plugins/volumebinding/volume_binding.go, binder.go; component-helpers storage/volume/pv_helpers.go."""

    name, filters = "VolumeBinding", True

    def prepare(self, world: World, pod: PodState) -> Any:
        if not claim_names(pod):
            return SKIP
        found = []
        for name in claim_names(pod):
            claim = world.named("pvcs", name, pod.namespace)
            if claim is None:
                return unresolvable(f'persistentvolumeclaim "{name}" not found')
            volume = claim["spec"].get("volumeName") or ""
            if claim["status"]["phase"] == "Lost":
                return unresolvable(f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{volume}"')
            if "deletionTimestamp" in claim["metadata"]:
                return unresolvable(f'persistentvolumeclaim "{name}" is being deleted')
            found.append(claim)
        unbound = [c for c in found if not _is_bound(c)]
        if any(not self._waits(world, claim) for claim in unbound):
            return unresolvable("pod has unbound immediate PersistentVolumeClaims")
        return [c for c in found if _is_bound(c)], unbound

    def _waits(self, world: World, claim: Json) -> bool:
        storage_class = world.named("storageClasses", claim["spec"].get("storageClassName") or "")
        is_delayed = storage_class is not None and storage_class["volumeBindingMode"] == "WaitForFirstConsumer"
        return is_delayed and not claim["spec"].get("volumeName")

    def refusal(self, state: Any, world: World, pod: PodState, node: str) -> Refused | None:
        bound, unbound = state
        reasons = []
        for claim in bound:
            volume = world.named("pvs", claim["spec"]["volumeName"])
            if volume is None:
                reasons.append("node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)")
                break
            if not _reaches(world, volume, node):
                reasons.append("node(s) didn't match PersistentVolume's node affinity")
                break
        late = self._late_reason(world, unbound, node)
        if late:
            at = 1 if reasons and "affinity" in reasons[0] else 0
            reasons.insert(at, late)
        return Refused(tuple(reasons), is_unresolvable=True) if reasons else None

    def _late_reason(self, world: World, unbound: Sequence[Json], node: str) -> str:
        """Why claims that wait for their first pod cannot be had here: matched first, then provisioned."""
        missing = "node(s) didn't find available persistent volumes to bind"
        to_match: list[Json] = []
        to_provision: list[Json] = []
        for claim in unbound:
            selected = (claim["metadata"].get("annotations") or {}).get(SELECTED_NODE)
            if selected not in (None, node):
                return missing
            (to_match if selected is None else to_provision).append(claim)
        chosen: set[str] = set()
        for claim in sorted(to_match, key=_size):
            volume = _matching_volume(world, claim, node, chosen)
            if volume is None:
                to_provision.append(claim)
            else:
                chosen.add(volume)
        for claim in to_provision:
            storage_class = world.named("storageClasses", claim["spec"]["storageClassName"])
            assert storage_class is not None
            if storage_class["provisioner"] == NO_PROVISIONER or not _is_allowed(world, storage_class, node):
                return missing
            if not _has_room(world, storage_class, claim, node):
                return "node(s) did not have enough free storage"
        return ""


def _is_bound(claim: Json) -> bool:
    return bool(claim["spec"].get("volumeName")) and BOUND in (claim["metadata"].get("annotations") or {})


def _size(claim: Json) -> Any:
    return quantity(claim["spec"]["resources"]["requests"]["storage"])


def _reaches(world: World, volume: Json, node: str) -> bool:
    required = (volume["spec"].get("nodeAffinity") or {}).get("required")
    return required is None or node_selector_matches(required, world.nodes[node].labels, "")


def _matching_volume(world: World, claim: Json, node: str, chosen: set[str]) -> str | None:
    """The volume bound to the claim beforehand, else the smallest free one that serves."""
    best: tuple[Any, str] | None = None
    spec = claim["spec"]
    for volume in world.objects("pvs"):
        name, offered = volume["metadata"]["name"], volume["spec"]
        reference = offered.get("claimRef")
        is_ours = reference is not None and _refers(reference, claim)
        size = quantity(offered["capacity"]["storage"])
        if offered.get("storageClassName") != spec["storageClassName"] or name in chosen:
            continue
        if (reference is not None and not is_ours) or size < _size(claim):
            continue
        if (offered.get("volumeMode") or "Filesystem") != (spec.get("volumeMode") or "Filesystem"):
            continue
        attributes = "volumeAttributesClassName"
        if offered.get(attributes) != spec.get(attributes) or "deletionTimestamp" in volume["metadata"]:
            continue
        reaches = _reaches(world, volume, node)
        if is_ours:
            return name if reaches else None
        is_free = volume["status"]["phase"] == "Available" and reaches
        has_labels = "selector" not in spec or selects(spec["selector"], volume["metadata"].get("labels") or {})
        if is_free and has_labels and set(spec["accessModes"]) <= set(offered["accessModes"]):
            best = (size, name) if best is None or size < best[0] else best
    return best[1] if best is not None else None


def _refers(reference: Json, claim: Json) -> bool:
    metadata = claim["metadata"]
    is_named = (reference["namespace"], reference["name"]) == (metadata["namespace"], metadata["name"])
    return is_named and reference.get("uid") in (None, "", metadata["uid"])


def _is_allowed(world: World, storage_class: Json, node: str) -> bool:
    terms = storage_class.get("allowedTopologies") or ()
    labels = world.nodes[node].labels
    return not terms or any(
        all(labels.get(e["key"]) in e["values"] for e in term["matchLabelExpressions"]) for term in terms
    )


def _has_room(world: World, storage_class: Json, claim: Json, node: str) -> bool:
    driver = world.named("csiDrivers", storage_class["provisioner"])
    if driver is None or not driver["spec"].get("storageCapacity"):
        return True
    for one in world.objects("csiStorageCapacities"):
        largest = one.get("maximumVolumeSize") or one.get("capacity")
        if (
            one["storageClassName"] == storage_class["metadata"]["name"]
            and largest is not None
            and quantity(largest) >= _size(claim)
            and selects(one.get("nodeTopology"), world.nodes[node].labels)
        ):
            return True
    return False
