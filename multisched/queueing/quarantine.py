"""Pods that the API server refuses again and again in the same words: who they are, and what can help them.

Pure. Such a pod would win a cycle and lose its bind for ever (KAI#2075). After REFUSALS_ALIKE_MAX refusals it waits as
an unschedulable pod does, with the API server as the one who refused it. Refusals count as alike by their words without
the node's name. Words other than the last ones begin the row anew; another failure in between does not.

It waits for what can be known: a change of its own (not of its status), a change of its namespace, and the leftover
flush. Admission policies select by the namespace's labels. Policies and webhooks themselves are not watched. Tried
again, it is set aside at once if the words are still the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from multisched.framework.events import Action, ClusterEvent, EventObject, EventRegistration, Hint, Resource
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod

REFUSALS_ALIKE_MAX = 5
"""Refusals in the same words after which a pod is set aside."""
WORDS_CHARS_MAX = 512
"""What is kept and compared of a refusal."""

API_SERVER = "APIServer"
"""Who refused the pod, where plugins are named."""

_OWN_CHANGES = (
    Action.UPDATE_POD_LABEL
    | Action.UPDATE_POD_SCALE_DOWN
    | Action.UPDATE_POD_SCALE_UP
    | Action.UPDATE_POD_TOLERATION
    | Action.UPDATE_POD_GATES
    | Action.UPDATE_POD_OTHER
)


class ServerRefusals:
    """Stands for the API server among the plugins whose events wake pods."""

    name = API_SERVER

    def events_to_register(self) -> Sequence[EventRegistration]:
        return (
            EventRegistration(ClusterEvent(Resource.TARGET_POD, _OWN_CHANGES, "OwnChange")),
            EventRegistration(ClusterEvent(ObjectKind.NAMESPACE, Action.UPDATE, "NamespaceUpdate"), _is_its_namespace),
        )


def _is_its_namespace(pod: Pod, old: EventObject, new: EventObject) -> Hint:
    return Hint.QUEUE if new is not None and new.name == pod.namespace else Hint.SKIP


def alike(words: str, node: str) -> str:
    """What two refusals of one pod on different nodes have in common; empty for words that are about us, not the pod.

    A scheduler without rights or credentials is refused for every pod, and gets them back without any event here.
    """
    if words.endswith("Unauthorized") or ('" cannot ' in words and ' resource "' in words):
        return ""
    return (words.replace(node, "NODE") if node else words)[:WORDS_CHARS_MAX]


def sentence(words: str, times: int, leftover_s: float) -> str:
    """The message for the owner of a pod that is set aside."""
    return (
        f"set aside: the API server has refused this pod {times} times in the same words; it is tried again when it or"
        f" its namespace changes, or in {leftover_s:.0f} s: {words[:WORDS_CHARS_MAX]}"
    )
