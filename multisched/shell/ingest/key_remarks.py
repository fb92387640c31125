"""Events about labels and annotations `multisched.io/...` that have no effect: one for each workload or node and text.

Owns what was said already. Called by ingest for each pod of ours that comes to wait, and by `NodeIngest` for each node.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from multisched.framework.ports import Event, EventSink, pod_ref
from multisched.model.objects import Pod
from multisched.model.own_keys import remarks_of_pod
from multisched.shell.domain import DomainWorker

IGNORED_KEY: Final = "IgnoredKey"
"""The event's reason."""
SAID_MAX: Final = 10_000
"""Remarks that are remembered; beyond, the oldest may be made again."""


class KeyRemarks:
    """Tells authors of pods what they wrote in vain."""

    def __init__(self, events: EventSink) -> None:
        self._events = events
        self._said: OrderedDict[Hashable, None] = OrderedDict()

    def see(self, worker: DomainWorker, pod: Pod) -> None:
        """Records what there is to say, if this process leads the pod's domain. Pods of one owner are told once."""
        if not worker.is_leading:
            return
        plugins = {built.plugin.name for built in worker.plugins.built}
        for text in remarks_of_pod(pod, worker.name, plugins):
            said = (pod.namespace, pod.uid if pod.owner is None else pod.owner.uid, text)
            if said in self._said:
                continue
            if len(self._said) >= SAID_MAX:
                self._said.popitem(last=False)
            self._said[said] = None
            by = pod.spec.scheduler_name
            self._events.record(Event(pod_ref(pod), "Warning", IGNORED_KEY, "Scheduling", text, by))
