"""Checks each binding against all required rules with the judge of `multisched verify`, when it takes effect.

A scheduler cannot know what happened a moment ago, and its bind may be in flight meanwhile. A placement therefore counts as wrong
only if it was wrong at every moment of the last `UNSEEN_MAX_S` seconds: changes by other clients in this time are reverted one by
one. Changes of pods are handled apart from other changes, since a watch of pods may be ahead of the other watches. Binds of the
same process, or of the process that led its domain before, are never reverted. A pod may have changed while it was still pending,
for instance by a resize in flight; that change is reverted unless it was observed when either of the two pods was decided on.

If a watch has lost an event of a pod, the changes of that pod are reverted first. Affinity, spreading and the amounts of loans are
checked in the order of decisions: pods that were assumed before the judged pod count, even if their binds have failed; pods that were
assumed after it do not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Any, Final, NamedTuple, Protocol

import orjson

from multisched.cluster.api.server import ApiServer
from multisched.cluster.base.storage import Collection as StoredKind
from multisched.cluster.base.storage import Stored
from multisched.config.domains import judged_domains
from multisched.config.schema import Configuration
from multisched.verify import Finding, Judge

UNSEEN_MAX_S: Final = 30.0
"""Time for which a change by another client may be unknown to a process: every watch may be broken, and the server away."""

UNSEEN_LOST_MAX_S: Final = 150.0
"""The same if a watch has lost an event: two audit periods, a list, and a backoff."""

KINDS: Final = {
    "namespaces": "Namespace",
    "nodes": "Node",
    "devices.scheduling.koordinator.sh": "Device",
    "storageclasses.storage.k8s.io": "StorageClass",
    "csinodes.storage.k8s.io": "CSINode",
    "persistentvolumes": "PersistentVolume",
    "persistentvolumeclaims": "PersistentVolumeClaim",
    "pods": "Pod",
}
"""Key of the store -> kind."""


AT_ASSUMPTION: Final = ("podAffinity", "topologySpread")
"""Rules that `AssumptionChecker` checks by what was observed."""
ORDER_DEPENDENT: Final = (*AT_ASSUMPTION, "loans")
"""Rules whose result depends on the order in which our pods were placed."""


class _Change(NamedTuple):
    at_s: float
    kind: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


_Known = dict[str, tuple[Stored, dict[str, Any]]]
_Pair = tuple[dict[str, Any] | None, dict[str, Any] | None]
"""A pod before and after a change."""


class SenderKnowledge(Protocol):
    """What the processes that place pods can know."""

    def is_known(self, one: str, uid: str) -> bool:
        """Reports whether the process that placed `uid` must know of the bind of `one`."""
        ...

    def was_delivered(self, pod: dict[str, Any], uid: str) -> bool:
        """Reports whether the pod was observed in this version when it, or `uid`, was decided on."""
        ...

    def missed_pods(self, uid: str) -> Collection[str]:
        """Returns uids of pods about which the process that placed `uid` has missed an event, though it may have received later
        events.
        """
        ...


class BindJudge:
    """Follows the server's store, and checks a pod that was just bound."""

    def __init__(
        self,
        server: ApiServer,
        configuration: Configuration,
        now_s: Callable[[], float],
        senders: SenderKnowledge,
        unseen_s: Callable[[], float] = lambda: UNSEEN_MAX_S,
    ) -> None:
        """`unseen_s`: returns the time in seconds for which a change may be unknown."""
        self._server = server
        self._now_s = now_s
        self._senders = senders
        self._unseen_s = unseen_s
        self._judge = Judge(judged_domains(configuration))
        self._known: dict[str, _Known] = {storage: {} for storage in KINDS}
        self._read: dict[str, tuple[dict[str, Stored], int]] = {}
        """Key of the store -> its objects, which a restore replaces, and the version up to which they were read."""
        self._changes: deque[_Change] = deque()
        self._assumed: dict[str, tuple[float, str]] = {}
        """uid -> time and node of the program's latest assumption."""
        self._decisions: dict[str, int] = {}
        """uid -> position in the order of decisions."""
        self._decided = 0
        self._assumed_before: dict[str, dict[str, str]] = {}
        """uid -> node of each pod that was assumed shortly before this pod was."""

    def assumed(self, uid: str, node: str) -> None:
        """Records an assumption of the program."""
        now_s = self._now_s()
        self._assumed = {one: at for one, at in self._assumed.items() if at[0] >= now_s - UNSEEN_MAX_S}
        self._assumed_before[uid] = {one: where for one, (_, where) in self._assumed.items() if one != uid}
        self._assumed[uid] = (now_s, node)
        self._decided += 1
        self._decisions[uid] = self._decided

    def follow(self) -> None:
        """Reads the changes of the store since the last call; also after a restored backup. It costs little if nothing has changed."""
        now_s = self._now_s()
        while self._changes and self._changes[0].at_s < now_s - UNSEEN_LOST_MAX_S:
            self._changes.popleft()
        for storage, kind in KINDS.items():
            collection, known = self._server.store.collection(storage), self._known[storage]
            objects, version = self._read.get(storage, (None, 0))
            if objects is collection.objects and version == collection.changed_at:
                continue
            self._read[storage] = collection.objects, collection.changed_at
            events = collection.events_since(version) if objects is collection.objects else None
            written = [(event.key, event.after) for event in events] if events is not None else _new(known, collection)
            for key, stored in written:
                self._write(kind, known, key, stored)

    def _write(self, kind: str, known: _Known, key: str, stored: Stored | None) -> None:
        before = known.pop(key)[1] if key in known else None
        after = orjson.loads(stored.raw) if stored is not None else None
        if stored is not None and after is not None:
            known[key] = stored, after
        self._changed(_Change(self._now_s(), kind, before, after))

    def findings(self, uid: str, ignored: Collection[str] = ()) -> list[Finding]:
        """Returns the findings about a pod that was just bound which were true at every moment of the last `unseen_s` seconds.

        `ignored`: rules that are checked elsewhere.
        """
        self.follow()
        undo: list[_Pair] = []
        found = [finding for finding in self._judge.placement(uid) if finding.rule not in ignored]
        found = self._at_every_moment(uid, found, self._unseen())
        missed_pods = self._senders.missed_pods(uid)
        if found and missed_pods:
            undo += self._revert(uid, missed_pods)
            found = self._still_found(found, uid, missed_pods)
        for change in (self._remove_decided_later, self._add_assumed_before):
            if any(finding.rule in ORDER_DEPENDENT for finding in found):
                undo += change(uid)
                lasting = self._still_found(found, uid, missed_pods)
                found = [finding for finding in found if finding in lasting or finding.rule not in ORDER_DEPENDENT]
        # The order of decisions decides alone on affinity and spreading; the order of watch events may excuse the others.
        others = [finding for finding in found if finding.rule not in AT_ASSUMPTION]
        lasting = self._at_every_pair_of_moments(uid, others, self._unseen(missed_pods))
        found = [finding for finding in found if finding.rule in AT_ASSUMPTION or finding in lasting]
        for before, after in reversed(undo):
            self._update("Pod", after, before)
        return found

    def _still_found(self, found: Sequence[Finding], uid: str, missed_pods: Collection[str]) -> list[Finding]:
        asked = {finding.rule for finding in found}
        lasting = [finding for finding in self._judge.placement(uid) if finding.rule in asked]
        rules = {finding.rule for finding in self._at_every_moment(uid, lasting, self._unseen(missed_pods))}
        return [finding for finding in found if finding.rule in rules]

    def _revert(self, uid: str, missed_pods: Collection[str]) -> Iterator[_Pair]:
        """Reverts the changes of these pods that the sender has not observed."""
        for change in reversed(self._changes):
            was_delivered = change.after is not None and self._senders.was_delivered(change.after, uid)
            past = self._as_revertible(change, uid) if _pod_of(change) in missed_pods and not was_delivered else None
            if past is not None:
                self._update("Pod", past.after, past.before)
                yield past.after, past.before

    def _unseen(self, settled: Collection[str] = ()) -> Iterator[_Change]:
        """Yields the changes that may be unknown, the latest first. `settled`: pods whose changes are not reverted."""
        since_s = self._now_s() - self._unseen_s()
        news = takewhile(lambda change: change.at_s >= since_s, reversed(self._changes))
        return (change for change in news if _pod_of(change) not in settled)

    def _at_every_moment(self, uid: str, found: list[Finding], changes: Iterable[_Change]) -> list[Finding]:
        """Returns the findings that remain while the changes, the latest first, are reverted one by one. All changes are applied
        again at the end.
        """
        undone: list[_Change] = []
        for change in changes:
            if not found:
                break
            found = self._without(uid, found, change, undone)
        for past in reversed(undone):
            self._update(past.kind, past.before, past.after)
        return found

    def _at_every_pair_of_moments(self, uid: str, found: list[Finding], news: Iterable[_Change]) -> list[Finding]:
        """Does the same with the watch of pods ahead of the others, and behind them: each kind has its own connection."""
        if not found:
            return found
        undone: list[_Change] = []
        changes = list(news)
        pods = [change for change in changes if change.kind == "Pod"]
        found = self._at_every_moment(uid, found, pods)
        for change in changes:
            if not found:
                break
            if change.kind != "Pod":
                found = self._at_every_moment(uid, self._without(uid, found, change, undone), pods)
        for past in reversed(undone):
            self._update(past.kind, past.before, past.after)
        return found

    def _without(self, uid: str, found: list[Finding], change: _Change, undone: list[_Change]) -> list[Finding]:
        """Returns the findings that remain after the change is reverted, if it can be."""
        past = self._as_revertible(change, uid)
        if past is None:
            return found
        undone.append(past)
        self._update(past.kind, past.after, past.before)
        rules = {finding.rule for finding in self._judge.placement(uid)}
        return [finding for finding in found if finding.rule in rules]

    def _as_revertible(self, change: _Change, uid: str) -> _Change | None:
        """Returns the change in a form that can be reverted; None if it was our own, or if the pod or its node did not exist
        before.
        """
        before, after = change.before, change.after
        if change.kind == "Node":
            return change if before is not None else None
        if change.kind != "Pod":
            return change
        one = after["metadata"]["uid"] if after is not None else ""
        if one == uid:
            return self._on_its_current_node(change)
        stood, stands = before is not None and _node_of(before), after is not None and _node_of(after)
        if stands and not stood:
            return None if self._senders.is_known(one, uid) else change
        if after is not None and not stood:
            return None if self._senders.was_delivered(after, uid) else self._on_its_current_node(change)
        return change if stood else None

    def _on_its_current_node(self, change: _Change) -> _Change | None:
        """Returns the change of a pod on its current node; None if it has no node, or if the change is its bind."""
        before, after = change.before, change.after
        if before is None or after is None or before["metadata"]["uid"] != after["metadata"]["uid"]:
            return None
        pod = self._judge.pods.get(after["metadata"]["uid"])
        if pod is None or _node_of(before) != _node_of(after):
            return None
        return change._replace(before=_placed(before, pod.node), after=_placed(after, pod.node))

    def _add_assumed_before(self, uid: str) -> Iterator[_Pair]:
        """Adds pods that were assumed before this pod and have no node, on the nodes that were chosen for them."""
        documents = [document for _, document in self._known["pods"].values()]
        documents += [change.before for change in self._changes if change.kind == "Pod" and change.before is not None]
        waiting = {str(document["metadata"]["uid"]): document for document in documents}
        for one, node in self._assumed_before.get(uid, {}).items():
            if one in waiting and one not in self._judge.pods:
                after = _placed(waiting[one], node)
                self._update("Pod", None, after)
                yield None, after

    def _remove_decided_later(self, uid: str) -> Iterator[_Pair]:
        """Removes our pods that were decided on after this pod."""
        decided = self._decisions.get(uid)
        if decided is None:
            return
        for _, document in list(self._known["pods"].values()):
            one = document["metadata"]["uid"]
            if one in self._judge.pods and self._decisions.get(one, -1) > decided:
                self._update("Pod", document, None)
                yield document, None

    def _changed(self, change: _Change) -> None:
        self._update(change.kind, change.before, change.after)
        self._changes.append(change)

    def _update(self, kind: str, before: dict[str, Any] | None, after: dict[str, Any] | None) -> None:
        if before is not None and (after is None or before["metadata"]["uid"] != after["metadata"]["uid"]):
            self._judge.forget(kind, before)
        if after is not None:
            self._judge.add(kind, after)


def _new(known: _Known, collection: StoredKind) -> list[tuple[str, Stored | None]]:
    """Returns the differences to the store if its events are no longer available."""
    gone = [key for key in known if key not in collection.objects]
    there = [(key, one) for key, one in collection.objects.items() if key not in known or known[key][0] is not one]
    return [*((key, None) for key in gone), *there]


def _pod_of(change: _Change) -> str:
    """Returns the uid of the changed pod; empty for other kinds."""
    document = change.after or change.before
    return str(document["metadata"]["uid"]) if change.kind == "Pod" and document is not None else ""


def _node_of(pod: dict[str, Any]) -> str:
    return pod["spec"].get("nodeName") or ""


def _placed(pod: dict[str, Any], node: str) -> dict[str, Any]:
    return {**pod, "spec": {**pod["spec"], "nodeName": node}}
