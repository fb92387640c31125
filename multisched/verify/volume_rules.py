"""Volumes: claims are bound, volumes reach the node, and exclusive claims have one pod."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from multisched.verify.findings import Fault
from multisched.verify.objects import ZONE_LABELS, Claim, Node, Pod, Volume
from multisched.verify.relation_rules import OtherPods


@dataclass(slots=True)
class Storage:
    """Claims and volumes, attach limits of nodes, and attached volumes by the API."""

    claims: dict[str, Claim] = field(default_factory=dict)
    """NAMESPACE/NAME -> claim."""
    volumes: dict[str, Volume] = field(default_factory=dict)
    provisioners: dict[str, str] = field(default_factory=dict)
    """Storage class -> provisioner."""
    limits: dict[str, dict[str, int]] = field(default_factory=dict)
    """Node -> driver -> maximum number of volumes."""
    attachments: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    """Attachment -> (node, driver, volume)."""

    def attached_by(self, pod: Pod) -> Mapping[str, str]:
        """Returns the pod's volumes that count against limits -> their drivers."""
        found = {}
        for name in pod.claims:
            claim = self.claims.get(f"{pod.namespace}/{name}")
            if claim is None:
                continue
            volume = self.volumes.get(claim.volume)
            if volume is not None and volume.driver:
                found[f"{volume.driver}/{volume.handle}"] = volume.driver
            elif volume is None and claim.storage_class in self.provisioners:
                driver = self.provisioners[claim.storage_class]
                found[f"{driver}/{claim.key}"] = driver  # its volume is being created
        return found

    def attached_to(self, node: str) -> Mapping[str, str]:
        """Returns the volumes attached to the node, of any pod -> their drivers."""
        found = {}
        for where, driver, name in self.attachments.values():
            volume = self.volumes.get(name)
            if where == node and volume is not None and volume.driver:
                found[f"{driver}/{volume.handle}"] = driver
        return found

    def faults(self, pod: Pod, node: Node, others: OtherPods) -> Iterator[Fault]:
        """Yields at most one fault per claim."""
        for name in pod.claims if self.claims else ():
            fault = self._claim_fault(pod, node, name, others)
            if fault is not None:
                yield fault

    def _claim_fault(self, pod: Pod, node: Node, name: str, others: OtherPods) -> Fault | None:
        claim = self.claims.get(f"{pod.namespace}/{name}")
        if claim is None:
            return Fault("volumes", f"its claim {name} does not exist", is_sure=others.knows_order)
        if claim.is_exclusive:
            users = others.placed_pods.claim_users.get(claim.key, {}).values()
            other = next((one for one in users if others.before(pod, one)), None)
            if other is not None:
                return Fault("volumes", f"its claim {name} allows one pod only and is used by {other.key}")
        if not claim.volume:
            return Fault("volumes", f"its claim {name} is not bound to a volume")
        volume = self.volumes.get(claim.volume)
        if volume is None:
            known = bool(self.volumes)
            message = f"its claim {name} is bound to {claim.volume}, which does not exist"
            return Fault("volumes", message, is_sure=others.knows_order) if known else None
        return _volume_fault(claim, volume, node)


def _volume_fault(claim: Claim, volume: Volume, node: Node) -> Fault | None:
    is_another = volume.claim_uid and claim.uid and volume.claim_uid != claim.uid
    if volume.claim and (volume.claim != claim.key or is_another):
        return Fault("volumes", f"volume {volume.name} of its claim {claim.key} belongs to another claim")
    if volume.node_affinity is not None and not volume.node_affinity.matches(node.labels, None):
        return Fault("volumes", f"volume {volume.name} cannot be reached from the node (its node affinity)")
    if not any(label in node.labels for pair in ZONE_LABELS.items() for label in pair):
        return None
    for label, zones in volume.zones:
        where = node.labels.get(label, node.labels.get(ZONE_LABELS[label]))
        if where not in zones:
            return Fault("volumes", f"volume {volume.name} is in {label}={'|'.join(sorted(zones))}, the node is not")
    return None
