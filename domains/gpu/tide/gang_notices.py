"""GangNotices: the notices of gangs that are not evicted yet. They are kept in memory, and also in annotations of the gangs' pods.

Owned by the background task. A leader uses its own notices, even if another client overwrites the annotations. For ADOPT_S after a
takeover, it adopts notices that it finds on pods. A notice that appears later and that this process did not write is foreign: it has no
effect and is removed. No clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from domains.gpu.dialects.own import TIDE_NOTICE
from domains.gpu.tide.notices import GangNotice as FoundNotice
from domains.gpu.tide.notices import Notice, notice_of
from domains.gpu.tide.state import GangNotice
from multisched.framework.ports import ObjectRef, pod_ref
from multisched.model.objects import Pod

ADOPT_S: Final = 30.0
"""For this time after a takeover, the watch may deliver writes of the former leader."""
FLAGGED_MAX: Final = 4096
WITHDRAWN_KEPT_S: Final = 600.0
LATE_S: Final = 1.0
"""If a member gets the notice more than this after the other members, the deadline is moved."""


class Given(msgspec.Struct):
    """A notice that was given to a gang."""

    notice: Notice
    written_s: dict[str, float] = msgspec.field(default_factory=dict)
    """uid of a member -> when this process wrote its annotation; for an adopted notice, when the notice was issued."""
    is_hook_done: bool = False
    is_hook_running: bool = False
    is_evicting: bool = False
    """The eviction of at least one member was sent."""
    is_withdrawn: bool = False
    """The annotations are being removed from the members."""
    refused: str = ""
    """Why the API server refused to write the annotation to a member; empty if it did not."""
    reported_s: float = 0.0
    """When an event last reported that the gang's eviction does not proceed."""

    def lacking(self, pods: Iterable[Pod]) -> list[Pod]:
        """Returns the members to which the notice is not written yet."""
        return [pod for pod in pods if pod.uid not in self.written_s]

    def has_joined(self, pod: Pod) -> bool:
        """Reports whether the pod was created after its gang got the notice.

        Such a pod does not move the deadline. Otherwise a gang could keep its cards forever by adding members.
        """
        return pod.created_s > self.notice.issued_s

    def ready_s(self, pods: Iterable[Pod], now_s: float, notice_s: float) -> float:
        """Returns the earliest time at which the gang may be evicted, so that each member has the notice for `notice_s`.

        Pods created after the notice was issued are not considered.
        """
        members = [pod for pod in pods if not self.has_joined(pod)]
        return max([self.notice.deadline_s, *(self.written_s.get(pod.uid, now_s) + notice_s for pod in members)])

    def may_be_ready_s(self, notice_s: float) -> float:
        """Returns the same, computed only from the members that have the notice."""
        return max([self.notice.deadline_s, *(at_s + notice_s for at_s in self.written_s.values())])

    def shown(self, pods: Iterable[Pod], now_s: float, notice_s: float) -> GangNotice:
        """Returns the notice as the planner sees it."""
        return GangNotice(
            self.ready_s(pods, now_s, notice_s), self.notice.for_demand, self.notice.overrides_min_run_time
        )


class GangNotices:
    """The notices by gang."""

    def __init__(self, notice_s: float) -> None:
        """`notice_s`: the configured notice."""
        self._notice_s = notice_s
        self.given: dict[str, Given] = {}
        self.led_since_s: float | None = None
        """When this process began to lead; None if it does not lead."""
        self._withdrawn: dict[str, float] = {}
        """Id of a notice -> when it was removed from all members. The watch may still deliver pods with it for a while."""
        self.foreign: dict[str, ObjectRef] = {}
        """uid -> pod whose annotation is malformed, or was written by another client. The annotation must be removed."""
        self._flagged: dict[str, str] = {}
        """uid -> text that was already added to `foreign`: each text is removed once, since the removal may be refused."""

    def see(self, gang: str, pods: Iterable[Pod], now_s: float) -> Given | None:
        """Returns the notice of the gang: the known one, or one adopted from the annotations of its pods; None if there is none."""
        pods = tuple(pods)
        known = self.given.get(gang)
        if known is not None and self.led_since_s is not None:
            return known
        found = notice_of(gang, {pod.uid: pod.annotations for pod in pods}, now_s)
        self._flag(pod for pod in pods if pod.uid in found.problems)
        if found.notice is None or found.notice.id in self._withdrawn:
            self.given.pop(gang, None)
            return None
        if self.led_since_s is not None and now_s > self.led_since_s + ADOPT_S:
            self._flag(pod for pod in pods if pod.uid not in found.lacking)
            return None
        return self._adopt(gang, found, pods, now_s)

    def _flag(self, pods: Iterable[Pod]) -> None:
        """Adds these pods to `foreign`, once for each text of their annotation."""
        for pod in pods:
            text = pod.annotations.get(TIDE_NOTICE, "")
            if self._flagged.pop(pod.uid, None) != text:
                self.foreign[pod.uid] = pod_ref(pod)
            self._flagged[pod.uid] = text
            if len(self._flagged) > FLAGGED_MAX:
                del self._flagged[next(iter(self._flagged))]

    def _adopt(self, gang: str, found: FoundNotice, pods: Iterable[Pod], now_s: float) -> Given:
        """Takes over the notice that a former leader wrote.

        If members are missing after the deadline and all remaining members have the notice, the former leader has begun to evict the
        gang, because an eviction begins only when all members have the notice.
        """
        assert found.notice is not None, "the caller has checked it"
        notice = found.notice
        written_s = {pod.uid: notice.issued_s for pod in pods if pod.uid not in found.lacking}
        given = self.given[gang] = Given(notice, written_s, is_hook_done=found.is_hook_called)
        is_complete = all(given.has_joined(pod) for pod in given.lacking(pods))
        if now_s >= notice.deadline_s and len(written_s) < notice.pods and is_complete:
            given.is_hook_done = given.is_evicting = True
        return given

    def give(self, notice: Notice) -> Given:
        """Adds a new notice, which is not written on any member yet."""
        given = self.given[notice.gang] = Given(notice)
        return given

    def for_late_members(self, given: Given, pods: Sequence[Pod], now_s: float) -> None:
        """Moves the deadline if members get the notice so late that they would be evicted before the configured time has passed."""
        deadline_s = now_s + self._notice_s
        is_late = deadline_s > given.notice.deadline_s + LATE_S
        if is_late and not all(given.has_joined(pod) for pod in given.lacking(pods)):
            given.notice = msgspec.structs.replace(given.notice, deadline_s=deadline_s, pods=len(pods))
            given.written_s.clear()

    def withdrawn(self, given: Given, now_s: float) -> None:
        """Records that the notice was removed from all members."""
        self.given.pop(given.notice.gang, None)
        self._withdrawn = {id_: at_s for id_, at_s in self._withdrawn.items() if at_s > now_s - WITHDRAWN_KEPT_S}
        self._withdrawn[given.notice.id] = now_s

    def drop_ended(self, running: Iterable[str]) -> list[str]:
        """Drops and returns the gangs that no longer have placed members. `running`: gangs with placed or terminating members."""
        ended = sorted(self.given.keys() - set(running))
        for gang in ended:
            del self.given[gang]
        return ended
