"""Quarantine: pods that the API server repeatedly refuses with the same message, and the events that may help them.

Pure. Such a pod would be scheduled and fail its bind forever (KAI#2075). After EQUAL_REFUSALS_MAX refusals it is parked
as unschedulable, with the API server as its rejector. Refusals are compared without the node's name. A different
message restarts the count; another kind of failure in between does not.

The pod waits for what can be observed: a change of its own (except status), a change of its namespace, and the leftover
flush. Admission policies select by the namespace's labels. Policies and webhooks themselves are not watched. After a
retry it is parked again at once if the message is still the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from multisched.framework.events import Action, ClusterEvent, EventObject, EventRegistration, Hint, Resource
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod

EQUAL_REFUSALS_MAX = 5
"""Equal refusals after which a pod is quarantined."""
WORDS_CHARS_MAX = 512
"""Characters of a refusal that are kept and compared."""

API_SERVER = "APIServer"
"""Name of the API server in lists of rejector plugins."""

_OWN_CHANGES = (
    Action.UPDATE_POD_LABEL
    | Action.UPDATE_POD_SCALE_DOWN
    | Action.UPDATE_POD_SCALE_UP
    | Action.UPDATE_POD_TOLERATION
    | Action.UPDATE_POD_GATES
    | Action.UPDATE_POD_OTHER
)


class ServerRefusals:
    """Registers the events that requeue quarantined pods, as if the API server were a plugin."""

    name = API_SERVER

    def events_to_register(self) -> Sequence[EventRegistration]:
        return (
            EventRegistration(ClusterEvent(Resource.TARGET_POD, _OWN_CHANGES, "OwnChange")),
            EventRegistration(ClusterEvent(ObjectKind.NAMESPACE, Action.UPDATE, "NamespaceUpdate"), _is_its_namespace),
        )


def _is_its_namespace(pod: Pod, old: EventObject, new: EventObject) -> Hint:
    return Hint.QUEUE if new is not None and new.name == pod.namespace else Hint.SKIP


def refusal_key(words: str, node: str) -> str:
    """Returns the message without the node's name, to compare refusals; empty if it is about the scheduler, not the pod.

    A scheduler without permissions or credentials is refused for every pod, and may get them back without an event.
    """
    if words.endswith("Unauthorized") or ('" cannot ' in words and ' resource "' in words):
        return ""
    return (words.replace(node, "NODE") if node else words)[:WORDS_CHARS_MAX]


def sentence(words: str, times: int, leftover_s: float) -> str:
    """Returns the message for the owner of a quarantined pod."""
    return (
        f"quarantined: the API server has refused this pod {times} times with the same message; it is retried when it or"
        f" its namespace changes, or in {leftover_s:.0f} s: {words[:WORDS_CHARS_MAX]}"
    )
