"""Volumes assumed for claims, and nodes assumed for provisioning, of pods that are being bound.

Written by `VolumeLedger` and read by the planner, so that no volume is assumed twice.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class AssumedVolume(msgspec.Struct, frozen=True):
    """A volume assumed for a claim."""

    volume: str
    claim: str
    """namespace/name of the claim."""
    claim_id: str


class AssumedProvision(msgspec.Struct, frozen=True):
    """A node for which a claim's volume will be provisioned."""

    claim: str
    claim_id: str
    node: str


class PodVolumes(msgspec.Struct, frozen=True):
    """The assumptions of one pod: volumes for some of its claims, provisioning for others."""

    row: int
    node: str
    volumes: tuple[AssumedVolume, ...] = ()
    provisions: tuple[AssumedProvision, ...] = ()


class _Shared:
    """Name -> its assumed target, with the pods that hold the assumption."""

    def __init__(self) -> None:
        self.to: dict[str, str] = {}
        self._holders: dict[str, set[str]] = {}

    def add(self, name: str, to: str, uid: str) -> None:
        self.to[name] = to
        self._holders.setdefault(name, set()).add(uid)

    def remove(self, name: str, uid: str) -> None:
        holders = self._holders[name]
        holders.discard(uid)
        if not holders:
            del self._holders[name], self.to[name]


class AssumedVolumes:
    """The assumptions by pod, and all assumed volumes and nodes together."""

    def __init__(self) -> None:
        self._held: dict[str, PodVolumes] = {}
        self._volumes = _Shared()
        self._nodes = _Shared()
        self.version = 0
        """Increases whenever a pod's assumptions are added or removed."""

    @property
    def volumes(self) -> Mapping[str, str]:
        """Volume name -> `claim_id` of the claim it will be bound to."""
        return self._volumes.to

    @property
    def nodes(self) -> Mapping[str, str]:
        """`claim_id` of a claim to be provisioned -> the node it will be provisioned for."""
        return self._nodes.to

    def of(self, uid: str) -> PodVolumes | None:
        """Returns the pod's assumptions; None if it has none."""
        return self._held.get(uid)

    def held(self) -> Mapping[str, PodVolumes]:
        """Returns a copy of uid -> assumptions."""
        return dict(self._held)

    def hold(self, uid: str, pod_volumes: PodVolumes) -> None:
        """Adds the assumptions of a pod that has none."""
        self._held[uid] = pod_volumes
        self.version += 1
        for volume in pod_volumes.volumes:
            self._volumes.add(volume.volume, volume.claim_id, uid)
        for provision in pod_volumes.provisions:
            self._nodes.add(provision.claim_id, provision.node, uid)

    def release(self, uid: str) -> None:
        pod_volumes = self._held.pop(uid, None)
        if pod_volumes is None:
            return
        self.version += 1
        for volume in pod_volumes.volumes:
            self._volumes.remove(volume.volume, uid)
        for provision in pod_volumes.provisions:
            self._nodes.remove(provision.claim_id, uid)
