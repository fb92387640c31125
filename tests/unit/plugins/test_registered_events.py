"""Which events each plugin of the default profile registers, and which of them it looks at itself."""

from __future__ import annotations

import pytest

from multisched.framework.points import EnqueueExtensions
from multisched.plugins import IN_TREE
from multisched.plugins.quota.quota_source import QUOTA_KINDS
from multisched.plugins.topology.default_selector import KINDS
from tests.unit.plugins.test_queueing_hints import plugin_of

ANY_POD_UPDATE = "|".join(
    f"UPDATE_POD_{what}" for what in ("LABEL", "SCALE_DOWN", "SCALE_UP", "TOLERATION", "GATES", "OTHER")
)
REGISTERED: dict[str, list[str]] = {
    "ElasticQuota": [
        "AssignedPod: DELETE|UPDATE_POD_LABEL|UPDATE_POD_SCALE_DOWN, AssignedPodFrees, hint",
        "AssignedPod: ADD|UPDATE_POD_LABEL|UPDATE_POD_SCALE_UP, AssignedPodTakes, hint",
        "TargetPod: UPDATE_POD_LABEL|UPDATE_POD_SCALE_DOWN|UPDATE_POD_OTHER, TargetPod, hint",
        *(f"{kind.value}: ADD|DELETE|UPDATE, {kind.value}" for kind in QUOTA_KINDS),
    ],
    "GangScheduling": [
        "Node: ADD|UPDATE_NODE_ALLOCATABLE|UPDATE_NODE_LABEL|UPDATE_NODE_TAINT|UPDATE_NODE_CONDITION, NodeGains, hint",
        "AssignedPod: DELETE|UPDATE_POD_LABEL|UPDATE_POD_SCALE_DOWN, AssignedPodFrees, hint",
    ],
    "InterPodAffinity": [
        "AssignedPod: ADD|DELETE|UPDATE_POD_LABEL, AssignedPod, hint",
        "TargetPod: UPDATE_POD_LABEL, TargetPodLabel",
        "Node: ADD|DELETE|UPDATE_NODE_LABEL, Node, hint",
        "DistantNode: ADD|DELETE|UPDATE_NODE_LABEL, DistantNode, hint",
        "Namespace: ADD|UPDATE, Namespace, hint",
    ],
    "NodeAffinity": [
        "Node: ADD|UPDATE_NODE_LABEL, NodeAddOrLabel, hint",
    ],
    "NodeDeclaredFeatures": [
        "Node: ADD|UPDATE_NODE_DECLARED_FEATURE, NodeAddOrDeclaredFeature, hint",
        f"TargetPod: {ANY_POD_UPDATE}, PodUpdate, hint",
    ],
    "NodeName": [
        "Node: ADD, NodeAdd",
    ],
    "NodePorts": [
        "AssignedPod: DELETE, AssignedPodDelete, hint",
        "Node: ADD, NodeAdd",
    ],
    "NodeResourcesFit": [
        "AssignedPod: DELETE|UPDATE_POD_SCALE_DOWN, AssignedPodFrees, hint",
        "TargetPod: UPDATE_POD_SCALE_DOWN, TargetPodScaleDown, hint",
        "Node: ADD|UPDATE_NODE_ALLOCATABLE, NodeAddOrAllocatable, hint",
    ],
    "NodeUnschedulable": [
        "Node: ADD|UPDATE_NODE_TAINT, NodeAddOrUncordoned, hint",
        "TargetPod: UPDATE_POD_TOLERATION, TargetPodToleration, hint",
    ],
    "NodeVolumeLimits": [
        "Node: ADD, NodeAdd",
        "CSINode: ADD, CSINodeAdd",
        "CSINode: UPDATE, CSINodeUpdate, hint",
        "CSINode: DELETE, CSINodeDelete",
        "AssignedPod: DELETE, AssignedPodDelete, hint",
        "AssignedPod: ADD, AssignedPodAdd, hint",
        "PersistentVolumeClaim: ADD, PersistentVolumeClaimAdd, hint",
        "VolumeAttachment: DELETE, VolumeAttachmentDelete, hint",
    ],
    "PodTopologySpread": [
        "AssignedPod: ADD|DELETE|UPDATE_POD_LABEL|UPDATE_POD_DELETING, AssignedPod, hint",
        "TargetPod: UPDATE_POD_LABEL|UPDATE_POD_TOLERATION, TargetPod, hint",
        "Node: ADD|DELETE|UPDATE_NODE_LABEL|UPDATE_NODE_TAINT, Node, hint",
        *(f"{kind.value}: ADD|DELETE|UPDATE, {kind.value}, hint" for kind in KINDS),
    ],
    "SchedulingGates": [
        "TargetPod: UPDATE_POD_GATES, TargetPodSchedulingGatesEliminated, hint",
    ],
    "TaintToleration": [
        "Node: ADD|UPDATE_NODE_TAINT, NodeAddOrTaint, hint",
        "TargetPod: UPDATE_POD_TOLERATION, TargetPodToleration, hint",
    ],
    "VolumeBinding": [
        "StorageClass: ADD|UPDATE, StorageClassChange, hint",
        "PersistentVolumeClaim: ADD|UPDATE, PersistentVolumeClaimChange, hint",
        "PersistentVolume: ADD|UPDATE, PersistentVolumeChange",
        "Node: ADD|UPDATE_NODE_LABEL, NodeChange",
        "CSINode: ADD|UPDATE, CSINodeChange, hint",
        "CSIDriver: UPDATE, CSIDriverChange, hint",
        "CSIStorageCapacity: ADD|UPDATE, CSIStorageCapacityChange, hint",
        "AssignedPod: DELETE, AssignedPodChange, hint",
    ],
    "VolumeRestrictions": [
        "AssignedPod: DELETE, AssignedPodDelete, hint",
        "Node: ADD, NodeAdd",
        "Node: DELETE, NodeDelete, hint",
        "DistantNode: DELETE, DistantNode, hint",
        "PersistentVolumeClaim: ADD, PersistentVolumeClaimAdd, hint",
    ],
    "VolumeZone": [
        "StorageClass: ADD, StorageClassAdd, hint",
        "Node: ADD|UPDATE_NODE_LABEL, NodeAddOrLabel",
        "PersistentVolumeClaim: ADD|UPDATE, PersistentVolumeClaimChange, hint",
        "PersistentVolume: ADD|UPDATE, PersistentVolumeChange, hint",
    ],
}
"""Plugin -> kind: actions, name of the event; `hint` where the plugin is asked whether this one helps."""


@pytest.mark.parametrize("name", sorted(IN_TREE))
def test_plugin_registers_exactly_the_events_that_may_cure_its_refusal(name: str) -> None:
    plugin = plugin_of(name)
    found = [
        f"{one.event.resource.value}: {'|'.join(action.name or '' for action in one.event.action)}, {one.event.label}"
        + (", hint" if one.hint else "")
        for one in (plugin.events_to_register() if isinstance(plugin, EnqueueExtensions) else ())
    ]
    assert found == REGISTERED.get(name, [])
