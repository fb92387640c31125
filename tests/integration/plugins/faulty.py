"""Plugins that fail at one extension point for the pod `victim`, as often as they are told, and behave otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from multisched.framework.dependency import Dependency
from multisched.framework.events import Action, ClusterEvent, EventObject, EventRegistration, Hint, Resource
from multisched.framework.points import PermitResult, PostFilterResult, PreFilterResult
from multisched.framework.reasons import ReasonTable
from multisched.framework.status import SUCCESS, Status
from multisched.model.objects import Pod

VICTIM = "victim"
NONSENSE: Any = [0.5]
"""No Status, no result, no array, no binding, not hashable."""


def _nothing(*args: Any) -> None:
    return None


async def _success(*args: Any) -> Status:
    return SUCCESS


async def _pass(*args: Any, **options: Any) -> None:
    return None


BENIGN: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    "PreEnqueue": {"pre_enqueue": lambda pod: SUCCESS},
    "PreFilter": {"pre_filter": lambda cycle, pod: PreFilterResult()},
    "Filter": {"filter": lambda cycle, pod, rows: np.zeros(len(rows), np.uint8)},
    "PostFilter": {"post_filter": lambda cycle, pod, refusals: PostFilterResult(Status.unschedulable())},
    "PreScore": {"pre_score": lambda cycle, pod, rows: SUCCESS},
    "Score": {"score": lambda cycle, pod, rows: np.zeros(len(rows), np.int64)},
    "NormalizeScore": {
        "normalize_score": lambda cycle, pod, raw: raw.copy(),
        "score": lambda cycle, pod, rows: np.zeros(len(rows), np.int64),
    },
    "Reserve": {"reserve": lambda cycle, pod, node: SUCCESS, "unreserve": _nothing},
    "Unreserve": {"unreserve": _nothing, "reserve": lambda cycle, pod, node: SUCCESS},
    "Permit": {"permit": lambda cycle, pod, node: PermitResult(SUCCESS)},
    "PreBind": {"pre_bind": _success},
    "Bind": {"bind": _pass},
    "PostBind": {"post_bind": _nothing},
    "Sign": {"sign": lambda pod: (), "filter": lambda cycle, pod, rows: np.zeros(len(rows), np.uint8)},
}
"""Point -> its methods, the one that fails first."""


class Faulty:
    """`args`: point, how (raise or nonsense), and times."""

    name = "Faulty"
    depends_on = Dependency.ATTEMPT

    def __init__(self, args: Mapping[str, Any]) -> None:
        self.reasons = ReasonTable(self.name)
        self._how = str(args["how"])
        self._left = int(args.get("times", 1))
        methods = BENIGN[str(args["point"])]
        for number, (method, benign) in enumerate(methods.items()):
            setattr(self, method, self._failing(benign) if number == 0 else benign)
        if args["point"] == "Unreserve":
            self.permit = self._refuse_once
        elif args["point"] in ("Filter", "Score", "NormalizeScore"):
            self.sign = lambda pod: pod.name
        self._refused = False

    def _refuse_once(self, cycle: Any, pod: Pod, node: str) -> PermitResult:
        """What makes an Unreserve come about."""
        if pod.name != VICTIM or self._refused:
            return PermitResult(SUCCESS)
        self._refused = True
        return PermitResult(Status.error("not now"))

    def _failing(self, benign: Callable[..., Any]) -> Callable[..., Any]:
        def failing(*args: Any, **options: Any) -> Any:
            if self._left and any(is_victim(arg) for arg in args):
                self._left -= 1
                if self._how == "raise":
                    raise RuntimeError("boom")
                return NONSENSE
            return benign(*args, **options)

        return failing


def is_victim(arg: Any) -> bool:
    """True for the pod, its place in the queue, and the request to bind it."""
    return getattr(arg, "name", "") == VICTIM or getattr(getattr(arg, "pod", None), "name", "") == VICTIM


class FaultySort:
    """QueueSort is known by its class."""

    name = "FaultySort"

    def __init__(self, args: Mapping[str, Any]) -> None:
        self._how = str(args["how"])

    def sort_key(self, entry: Any) -> Any:
        if not is_victim(entry):
            return (entry.queued_s, entry.pod.name)
        if self._how == "raise":
            raise RuntimeError("boom")
        return {"nonsense": NONSENSE, "incomparable": ("text", 1)}[self._how]


class NeedsMate:
    """Refuses `victim` until its hint has heard of a pending pod labelled `mate` that came, or went."""

    name = "NeedsMate"

    def __init__(self, args: Mapping[str, Any]) -> None:
        self._event = ClusterEvent(Resource.UNSCHEDULED_POD, Action[str(args["action"])])
        self._heard = False

    def pre_filter(self, cycle: Any, pod: Pod) -> PreFilterResult:
        is_refused = "needs" in pod.labels and not self._heard
        return PreFilterResult(Status.unschedulable("no mate") if is_refused else SUCCESS)

    def events_to_register(self) -> Sequence[EventRegistration]:
        return [EventRegistration(self._event, self._hint)]

    def _hint(self, pod: Pod, old: EventObject, new: EventObject) -> Hint:
        other = old if self._event.action is Action.DELETE else new
        assert isinstance(other, Pod)
        if "mate" not in other.labels:
            return Hint.SKIP
        self._heard = True
        return Hint.QUEUE
