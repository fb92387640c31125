"""PreBind of VolumeBinding: writes the pod's assumed bindings, then waits until its claims are bound.

Has no state. Writes carry the object's version. After a conflict, the newer object is checked, and the write is retried if
the assumption still holds. The API does not support undoing writes: they stay, and the pod's next attempt uses them. The
wait reads the object store, never the API server.
Source: kube-scheduler 1.36, plugins/volumebinding/binder.go, BindPodVolumes and checkBindings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import anyio
import msgspec

from multisched.framework.node_view import NodeView
from multisched.framework.objects_view import ObjectsView
from multisched.framework.ports import ObjectRef, VolumeAnswer, VolumeReply, VolumeWriter
from multisched.model.cluster_objects import SELECTED_NODE_ANNOTATION, PersistentVolume, PersistentVolumeClaim
from multisched.model.objects import Pod
from multisched.model.version import Version, is_covered, is_older
from multisched.plugins.volumes.assumed_volumes import AssumedProvision, AssumedVolume, PodVolumes
from multisched.plugins.volumes.volume_ledger import VolumeLedger
from multisched.plugins.volumes.volume_matching import claim_id
from multisched.plugins.volumes.volume_planner import cannot_translate

CONFLICTS_MAX = 3
"""Maximum number of conflicting writes per object before PreBind fails."""

NEWER_WAIT_MAX_S = 5.0
"""Time limit for the watch to deliver the newer object after a conflict."""

POLL_FIRST_S, POLL_MAX_S = 0.05, 1.0
"""First and longest interval between reads of the store. (Upstream reads once per second.)"""

POLL_GROWTH = 1.5


class BindError(Exception):
    """The pod's volumes cannot be bound as assumed; the text is shown to the pod's owner."""


class BindDeniedError(BindError):
    """The API server rejected a write permanently; the text is the server's message."""


class _Written(msgspec.Struct, frozen=True):
    """The writes with their resulting versions; older objects in the store do not reflect them yet."""

    volumes: tuple[tuple[AssumedVolume, Version], ...]
    provisions: tuple[tuple[AssumedProvision, Version], ...]


class VolumeBinder:
    """Writes the bindings that VolumeBinding assumed for a pod, and waits until its claims are bound."""

    def __init__(self, objects: ObjectsView, nodes: NodeView, ledger: VolumeLedger, writer: VolumeWriter) -> None:
        self._objects = objects
        self._nodes = nodes
        self._ledger = ledger
        self._writer = writer

    async def bind(self, pod: Pod, pod_volumes: PodVolumes, *, timeout_s: float) -> None:
        """Returns when all claims are bound. Raises BindError, at the latest `timeout_s` after the writes."""
        written = _Written(
            tuple([(volume, await self._bind_volume(volume)) for volume in pod_volumes.volumes]),
            tuple([(provision, await self._select_node(provision)) for provision in pod_volumes.provisions]),
        )
        try:
            await self._wait(pod, pod_volumes, written, timeout_s)
        except BindError as error:
            raise BindError(f"binding volumes: {error}") from error

    # -- writing ---------------------------------------------------------------------------------------------------

    async def _bind_volume(self, assumed: AssumedVolume) -> Version:
        """Binds the volume to the claim. Returns the version of the bound volume. Raises BindError."""
        reply = VolumeReply(VolumeAnswer.CONFLICT)
        for _ in range(CONFLICTS_MAX):
            volume, claim = self._volume(assumed.volume), self._claim(assumed.claim, assumed.claim_id)
            owner = volume.claim
            _check_unbound(claim, volume.name)
            if owner is not None and (owner.namespace, owner.name, owner.uid) == (
                claim.namespace,
                claim.name,
                claim.uid,
            ):
                return volume.version
            if owner is not None and not _may_take(volume, claim):
                raise BindError(f'persistentvolume "{volume.name}" is bound to claim {owner.namespace}/{owner.name}')
            reply = await self._writer.bind_volume(
                ObjectRef("PersistentVolume", "", volume.name, volume.uid),
                volume.version,
                _ref(claim),
                claim_version=claim.version,
                is_by_scheduler=owner is None,
            )
            if reply.answer is not VolumeAnswer.CONFLICT:
                break
            await _wait_for_newer(partial(self._objects.volume, volume.name), volume.version)
        return _version(reply, assumed.volume)

    async def _select_node(self, assumed: AssumedProvision) -> Version:
        """Selects the node for provisioning. Returns the version of the claim with the annotation. Raises BindError."""
        reply = VolumeReply(VolumeAnswer.CONFLICT)
        for _ in range(CONFLICTS_MAX):
            claim = self._claim(assumed.claim, assumed.claim_id)
            node = claim.annotations.get(SELECTED_NODE_ANNOTATION)
            if node == assumed.node:
                return claim.version
            if node is not None:
                raise BindError(f'persistentvolumeclaim "{claim.name}" is being provisioned for node "{node}"')
            _check_unbound(claim, "")
            reply = await self._writer.select_node(_ref(claim), claim.version, assumed.node)
            if reply.answer is not VolumeAnswer.CONFLICT:
                break
            await _wait_for_newer(partial(self._objects.claim, claim.namespace, claim.name), claim.version)
        return _version(reply, assumed.claim)

    def _volume(self, name: str) -> PersistentVolume:
        volume = self._objects.volume(name)
        if volume is None:
            raise BindError(f'failed to check binding: persistentvolumes "{name}" not found')
        return volume

    def _claim(self, key: str, expected: str) -> PersistentVolumeClaim:
        """Returns the claim with the expected uid. Raises BindError if it does not exist, or has another uid."""
        namespace, _, name = key.partition("/")
        claim = self._objects.claim(namespace, name)
        if claim is None or claim_id(claim) != expected:
            raise BindError(f'failed to check binding: persistentvolumeclaims "{key}" not found')
        return claim

    # -- waiting ---------------------------------------------------------------------------------------------------

    async def _wait(self, pod: Pod, pod_volumes: PodVolumes, written: _Written, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        deadline_s, pause_s = loop.time() + timeout_s, POLL_FIRST_S
        while not self._is_bound(pod, pod_volumes, written):
            left_s = deadline_s - loop.time()
            if left_s <= 0:
                raise BindError("context deadline exceeded")
            await asyncio.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * POLL_GROWTH, POLL_MAX_S)

    def _is_bound(self, pod: Pod, pod_volumes: PodVolumes, written: _Written) -> bool:
        """Reports whether every claim is bound. Raises BindError if a claim can no longer be bound as assumed on this node."""
        row = self._nodes.row_of(pod_volumes.node)
        if row is None:
            raise BindError(f'failed to get node "{pod_volumes.node}": node "{pod_volumes.node}" not found')
        if self._ledger.assumed_volumes.of(pod.uid) is not pod_volumes:
            raise BindError(f'pod does not exist any more: pod "{pod.name}" not found')
        return all(self._is_volume_bound(v, version, pod_volumes.node, row) for v, version in written.volumes) and all(
            self._is_provisioned(p, version, row) for p, version in written.provisions
        )

    def _is_volume_bound(self, assumed: AssumedVolume, version: Version, node: str, row: int) -> bool:
        volume, claim = self._volume(assumed.volume), self._claim(assumed.claim, assumed.claim_id)
        is_applied = volume.claim is not None and bool(volume.claim.uid)
        if not _has_seen(volume, version, is_applied=is_applied):
            return False
        self._check_reach(volume, node, row, doing="failed to translate pv to csi: ")
        if not is_applied:
            raise BindError(f'ClaimRef got reset for pv "{volume.name}"')
        _check_unbound(claim, volume.name)
        return claim.is_fully_bound

    def _is_provisioned(self, assumed: AssumedProvision, version: Version, row: int) -> bool:
        namespace, _, name = assumed.claim.partition("/")
        claim = self._objects.claim(namespace, name)
        if claim is None or claim_id(claim) != assumed.claim_id:
            raise BindError(f'failed to check provisioning pvc: persistentvolumeclaims "{assumed.claim}" not found')
        node = claim.annotations.get(SELECTED_NODE_ANNOTATION)
        if not _has_seen(claim, version, is_applied=node is not None):
            return False
        if node != assumed.node:
            raise BindError(f'provisioning failed for PVC "{name}"')
        if claim.volume:
            volume = self._objects.volume(claim.volume)
            if volume is None:
                return False
            self._check_reach(volume, assumed.node, row)
        return claim.is_fully_bound

    def _check_reach(self, volume: PersistentVolume, node: str, row: int, *, doing: str = "") -> None:
        """Raises BindError if the volume is no longer reachable from the node, since labels or its node affinity changed.

        `doing`: upstream's prefix of a message about a failed translation to CSI.
        """
        masks = self._ledger.planner.masks
        unknown = masks.untranslatable(self._nodes, volume)
        if unknown is not None and unknown[row]:
            raise BindError(f"{doing}{cannot_translate(volume)}")
        mask = masks.of_volume(self._nodes, volume)
        if mask is not None and not mask[row]:
            text = f'pv "{volume.name}" node affinity doesn\'t match node "{node}": no matching NodeSelectorTerms'
            raise BindError(text)


def _check_unbound(claim: PersistentVolumeClaim, volume: str) -> None:
    """Raises BindError if the claim was bound to another volume.

    The previous leader may have done that, with a write that our watch has not delivered yet. Upstream checks only whether
    the claim is bound, not to which volume.
    """
    if claim.volume not in ("", volume):
        raise BindError(f'persistentvolumeclaim "{claim.name}" is bound to persistentvolume "{claim.volume}"')


def _may_take(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """Reports whether a user reserved the volume for a claim of this name (a claimRef without uid)."""
    owner = volume.claim
    return owner is not None and (owner.namespace, owner.name, owner.uid) == (claim.namespace, claim.name, "")


async def _wait_for_newer(
    find: Callable[[], PersistentVolume | PersistentVolumeClaim | None], version: Version
) -> None:
    """Waits, at most NEWER_WAIT_MAX_S, until the watch has delivered the object with which a write conflicted."""
    with anyio.move_on_after(NEWER_WAIT_MAX_S):
        while (item := find()) is not None and item.version == version:  # noqa: ASYNC110 - the view has no notifications
            await asyncio.sleep(POLL_FIRST_S)


def _has_seen(item: PersistentVolume | PersistentVolumeClaim, written: Version, *, is_applied: bool) -> bool:
    """Reports whether the watch has delivered our write or a later one. `is_applied`: the object has the written value."""
    if is_covered(written, item.version):
        return True
    return is_applied and not is_older(item.version, written)


def _version(reply: VolumeReply, name: str) -> Version:
    """Returns the written version. Raises BindError if the write failed."""
    if reply.answer is VolumeAnswer.REFUSED and reply.message:
        raise BindDeniedError(reply.message)
    if reply.answer is not VolumeAnswer.DONE:
        raise BindError(reply.message or f"{name}: {reply.answer.name.lower()}")
    return reply.version


def _ref(claim: PersistentVolumeClaim) -> ObjectRef:
    return ObjectRef("PersistentVolumeClaim", claim.namespace, claim.name, claim.uid)
