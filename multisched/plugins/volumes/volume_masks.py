"""Cached masks of rows from which a volume, a storage class or a CSI driver's capacity is reachable.

Owns a bounded cache: a mask is computed once for all rows and is valid until a node object changes. The key is the selector,
so volumes with equal node affinity (the thousand disks of a zone) share one mask. Used by VolumeBinding only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

import msgspec
import numpy as np

from multisched.framework.node_view import Bools, NodeView, Rows
from multisched.framework.objects_view import ObjectsView
from multisched.model.cluster_objects import PersistentVolume, TopologyTerm
from multisched.model.object_kinds import ObjectKind
from multisched.model.selectors import LabelSelector, NodeSelector, NodeTerm, Operator, Requirement
from multisched.plugins.node_matching import NodeMatcher

MASKS_MAX = 4_096
"""Maximum number of cached masks, one byte per row each. If exceeded, the cache is cleared."""

_ZONE, _ZONE_BETA = "topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"
_REGION, _REGION_BETA = "topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region"
_ZONE_SEPARATOR = "__"

_DRIVER_ZONES: Mapping[str, str] = {
    "kubernetes.io/aws-ebs": "topology.ebs.csi.aws.com/zone",
    "kubernetes.io/gce-pd": "topology.gke.io/zone",
    "kubernetes.io/cinder": "topology.cinder.csi.openstack.org/zone",
    "kubernetes.io/azure-disk": "",
    "kubernetes.io/portworx-volume": "",
}
"""In-tree plugin with completed CSI migration -> the driver's label key for zones; empty if the driver ignores topology.

Source: csi-translation-lib, volumebinding isCSIMigrationOnForPlugin.
"""


class RowMasks:
    """Computes and caches masks over all rows of the table."""

    def __init__(self, objects: ObjectsView) -> None:
        self._objects = objects
        self._version = -1
        self._masks: dict[Hashable, Bools] = {}
        self._migrated: dict[str, tuple[int, Bools]] = {}

    def affine(self, nodes: NodeView, selector: NodeSelector) -> Bools:
        """Returns bool[all rows]: the row's labels match a term. Field requirements are ignored, since upstream passes only labels."""
        return self._kept(nodes, selector, lambda match: _any_term(match, selector))

    def of_volume(self, nodes: NodeView, volume: PersistentVolume) -> Bools | None:
        """Returns bool[all rows]: the volume's node affinity, as translated for the row's CSI driver, matches; None: all rows.

        Has no meaning on rows where the volume is `untranslatable`.
        """
        plain = None if volume.node_affinity is None else self.affine(nodes, volume.node_affinity)
        disk = volume.migrated
        if disk is None or disk.plugin not in _DRIVER_ZONES:
            return plain
        migrated = self._rows_migrated(nodes, disk.plugin)
        if disk.error or not migrated.any():
            return plain
        selector = translated(volume, _DRIVER_ZONES[disk.plugin])
        if selector is None or selector == volume.node_affinity:
            return plain
        elsewhere = np.ones(len(migrated), np.bool_) if plain is None else plain
        return np.where(migrated, self.affine(nodes, selector), elsewhere)

    def untranslatable(self, nodes: NodeView, volume: PersistentVolume) -> Bools | None:
        """Returns bool[all rows]: the plugin is migrated on the row, but the volume cannot be translated to CSI; None: no rows."""
        disk = volume.migrated
        if disk is None or not disk.error or disk.plugin not in _DRIVER_ZONES:
            return None
        return self._rows_migrated(nodes, disk.plugin)

    def allowed(self, nodes: NodeView, terms: tuple[TopologyTerm, ...]) -> Bools:
        """Returns bool[all rows]: one of a class's allowedTopologies matches. Source: core/v1 helper MatchTopologySelectorTerms."""
        return self._kept(nodes, ("allowed", terms), lambda match: _any_topology(match, terms))

    def selected(self, nodes: NodeView, selector: LabelSelector) -> Bools:
        """Returns bool[all rows]: the labels match the selector (nodeTopology of a CSIStorageCapacity)."""
        return self._kept(nodes, selector, lambda match: match.all_of(selector.requirements))

    def _kept(self, nodes: NodeView, key: Hashable, compute: Callable[[NodeMatcher], Bools]) -> Bools:
        self._renew(nodes)
        mask = self._masks.get(key)
        if mask is None:
            if len(self._masks) >= MASKS_MAX:
                self._masks.clear()
            mask = compute(NodeMatcher(nodes, _all_rows(nodes)))
            mask.flags.writeable = False
            self._masks[key] = mask
        return mask

    def _renew(self, nodes: NodeView) -> None:
        if self._version != nodes.nodes_version:
            self._version = nodes.nodes_version
            self._masks.clear()
            self._migrated.clear()

    def _rows_migrated(self, nodes: NodeView, plugin: str) -> Bools:
        """Returns bool[all rows]: the node's CSINode lists the plugin as migrated to CSI."""
        self._renew(nodes)
        version = self._objects.version(ObjectKind.CSI_NODE)
        known = self._migrated.get(plugin)
        if known is not None and known[0] == version:
            return known[1]
        rows = np.zeros(len(nodes.taint_set), np.bool_)
        for item in self._objects.all(ObjectKind.CSI_NODE):
            found = self._objects.csi_node(item.name)
            row = nodes.row_of(item.name) if found is not None and plugin in found.migrated_plugins else None
            if row is not None:
                rows[row] = True
        self._migrated[plugin] = (version, rows)
        return rows


def translated(volume: PersistentVolume, driver_zone: str) -> NodeSelector | None:
    """Returns the node affinity of an in-tree volume, translated for its CSI driver.

    Zones in the affinity get the driver's key. If there are none, the zones of the volume's labels are added to every term.
    Source: translateTopologyFromInTreeToCSI.
    """
    if not driver_zone:
        return volume.node_affinity
    selector = volume.node_affinity
    terms = selector.terms if selector is not None else ()
    keys = {e.key for term in terms for e in term.expressions}
    is_beta = _ZONE not in keys and (_ZONE_BETA in keys or (_ZONE not in volume.labels and _ZONE_BETA in volume.labels))
    zone = _ZONE_BETA if is_beta else _ZONE
    zones = {v for term in terms for e in term.expressions if e.key == zone for v in e.values}
    if zones:
        terms = _renamed(terms, zone, driver_zone)
    elif zone in volume.labels:
        named = sorted({z.strip() for z in volume.labels[zone].split(_ZONE_SEPARATOR)} - {""})
        if named:
            added = Requirement(driver_zone, Operator.IN, tuple(named))
            terms = tuple(_with(term, added) for term in terms or (NodeTerm(),))
    if is_beta:
        terms = _renamed(terms, _REGION_BETA, _REGION)
    return selector if not terms and selector is None else NodeSelector(terms)


def _renamed(terms: tuple[NodeTerm, ...], old: str, new: str) -> tuple[NodeTerm, ...]:
    def rename(requirement: Requirement) -> Requirement:
        return msgspec.structs.replace(requirement, key=new) if requirement.key == old else requirement

    return tuple(msgspec.structs.replace(t, expressions=tuple(map(rename, t.expressions))) for t in terms)


def _with(term: NodeTerm, requirement: Requirement) -> NodeTerm:
    return msgspec.structs.replace(term, expressions=(*term.expressions, requirement))


def _all_rows(nodes: NodeView) -> Rows:
    return np.arange(len(nodes.taint_set))


def _any_term(match: NodeMatcher, selector: NodeSelector) -> Bools:
    """Returns bool[rows]: a term's label expressions match. A term with only fields matches all rows, as upstream."""
    found = np.zeros(match.count, np.bool_)
    for term in selector.terms:
        if term.is_valid and not term.is_empty:
            found |= match.all_of(term.expressions)
    return found


def _any_topology(match: NodeMatcher, terms: tuple[TopologyTerm, ...]) -> Bools:
    if not terms:
        return np.ones(match.count, np.bool_)
    found = np.zeros(match.count, np.bool_)
    for term in terms:
        if term.expressions:
            found |= match.all_of(tuple(Requirement(k, Operator.IN, values) for k, values in term.expressions))
    return found
