"""A small API server for SliceSets and pods: resourceVersions, the status subresource, finalizers, and writes without a change.

Requests are the documents that `client/slice_writer.py` sends. It enforces what the definition in `deploy/crds` does.
"""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import orjson

from multisched.client.slice_writer import wire_of
from multisched.framework.slice_writes import SliceAnswer, SliceCall, SliceReply, SliceRequest
from multisched.model.cluster_objects import SliceSet
from multisched.model.decode_objects import decode_slice_set
from tests.unit.plugins.loans.slices.slice_judge import Amount, SliceJudge

Document = dict[str, Any]
KEYS = ("cpuMilli", "memoryBytes", "pods")


class PodRecord(msgspec.Struct):
    uid: str
    node: str
    side: str
    amount: Amount
    is_deleting: bool = False
    is_gone: bool = False


class SliceApi:
    """The store, and its history for watches."""

    def __init__(self, judge: SliceJudge) -> None:
        self.objects: dict[str, Document] = {}
        self.pods: dict[str, PodRecord] = {}
        self.slice_events: list[tuple[bool, SliceSet]] = []
        """Whether the object exists, and its version."""
        self.pod_events: list[tuple[str, str]] = []
        """`bound`, `deleting` or `gone`, and the uid."""
        self._judge = judge
        self._version = 0

    # -- SliceSets -------------------------------------------------------------------------------------------------

    def listed(self) -> list[SliceSet]:
        return [decoded(document) for document in self.objects.values()]

    def handle(self, request: SliceRequest) -> SliceReply:
        _, _, body = wire_of(request)
        stored = self.objects.get(request.name)
        if request.call is SliceCall.READ:
            return SliceReply(SliceAnswer.NOT_FOUND) if stored is None else done(stored)
        sent = orjson.loads(body)
        if request.call is SliceCall.CREATE:
            return SliceReply(SliceAnswer.CONFLICT) if stored is not None else done(self._create(sent))
        if stored is None:
            return SliceReply(SliceAnswer.NOT_FOUND)
        if any(sent["metadata"][key] != stored["metadata"][key] for key in ("resourceVersion", "uid")):
            return SliceReply(SliceAnswer.CONFLICT)
        changed = "status" if request.status is not None else "spec"
        new = {**copy.deepcopy(stored), changed: sent[changed]}
        if changed == "spec":
            new["metadata"]["finalizers"] = sent["metadata"].get("finalizers", [])
        if problem := forbidden(stored, new):
            return SliceReply(SliceAnswer.REFUSED, message=problem)
        return done(self._replace(stored, new, changed, by_leader=True))

    def _create(self, sent: Document) -> Document:
        sent["metadata"]["uid"] = f"uid-{self._version + 1}"
        sent["status"] = {}
        return self._store(sent, "spec", by_leader=True)

    def _replace(self, stored: Document, new: Document, changed: str, *, by_leader: bool) -> Document:
        if new == stored:
            return stored
        new["metadata"]["generation"] = stored["metadata"].get("generation", 0) + (changed == "spec")
        if "deletionTimestamp" in new["metadata"] and not new["metadata"]["finalizers"]:
            self._remove(new)
            return new
        return self._store(new, changed, by_leader=by_leader)

    def _store(self, document: Document, changed: str, *, by_leader: bool) -> Document:
        self._version += 1
        document["metadata"]["resourceVersion"] = str(self._version)
        self.objects[document["metadata"]["name"]] = document
        self.slice_events.append((True, decoded(document)))
        self._judge.on_slice_set(document, changed, by_leader=by_leader)
        return document

    def _remove(self, document: Document) -> None:
        self._version += 1
        name = document["metadata"]["name"]
        del self.objects[name]
        document["metadata"]["resourceVersion"] = str(self._version)
        self.slice_events.append((False, decoded(document)))
        self._judge.on_slice_set_gone(name)

    # -- a person with kubectl -------------------------------------------------------------------------------------

    def edit(self, name: str, half: str, values: Document) -> None:
        """Replaces a half by hand, if the definition allows it."""
        stored = self.objects[name]
        new = {**copy.deepcopy(stored), half: values}
        if not forbidden(stored, new):
            self._replace(stored, new, half, by_leader=False)

    def delete(self, name: str, *, by_force: bool) -> None:
        """`by_force`: removes the finalizer, too."""
        new = copy.deepcopy(self.objects[name])
        new["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        if by_force:
            new["metadata"]["finalizers"] = []
        self._replace(self.objects[name], new, "metadata", by_leader=False)

    # -- pods ------------------------------------------------------------------------------------------------------

    def bind(self, pod: PodRecord) -> None:
        if pod.uid not in self.pods:
            self.pods[pod.uid] = pod
            self.pod_events.append(("bound", pod.uid))
            self._judge.on_pod(pod.uid, pod.node, pod.side, pod.amount)

    def end(self, uid: str) -> None:
        """Deletes the pod; the second time, it is gone: until then it uses its node."""
        if not self.pods[uid].is_deleting:
            self.pods[uid].is_deleting = True
            self.pod_events.append(("deleting", uid))
            return
        self.pods[uid].is_gone = True
        self.pod_events.append(("gone", uid))
        self._judge.on_pod_gone(uid)

    def running(self, side: str) -> list[PodRecord]:
        return [pod for pod in self.pods.values() if pod.side == side and not pod.is_gone]


def decoded(document: Document) -> SliceSet:
    return decode_slice_set(orjson.dumps(document))


def done(document: Document) -> SliceReply:
    return SliceReply(SliceAnswer.DONE, decoded(document))


def forbidden(old: Document, new: Document) -> str:
    """The rules of the definition: writes never fall, held never rises above the offers."""
    for half in ("spec", "status"):
        if new[half].get("writes", 0) < old[half].get("writes", 0):
            return f"{half}.writes must not fall"
    offers, before = new["spec"].get("offers", {}), old["status"].get("held", {})
    for uid, entry in new["status"].get("held", {}).items():
        for key in KEYS:
            if entry[key] > max(offers.get(uid, {}).get(key, 0), before.get(uid, {}).get(key, 0)):
                return f"status.held[{uid}].{key} must not rise above the offer"
    return ""
