"""Records events about labels and annotations of pods that have no effect, once per message and owner of the pods.

The keys are those of this program and those that plugins know. Owns the messages recorded so far. Called for each new pending pod,
and when its labels or annotations change.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Final

from multisched.framework.introspection import RemarkPlugin
from multisched.framework.ports import Event, EventSink, pod_ref
from multisched.model.objects import Pod
from multisched.model.own_keys import REMARKS_MAX, remarks_of_pod
from multisched.shell.domain import DomainWorker

logger = logging.getLogger(__name__)

IGNORED_KEY: Final = "IgnoredKey"
"""Reason of these events."""
SAID_MAX: Final = 10_000
"""Maximum number of messages remembered as recorded; beyond it, the oldest may be recorded again."""


class KeyRemarks:
    """Recorder of events about keys of pods that have no effect."""

    def __init__(self, events: EventSink) -> None:
        self._events = events
        self._said: OrderedDict[Hashable, None] = OrderedDict()

    def see(self, worker: DomainWorker, pod: Pod) -> None:
        """Records the events for a pod if this process leads its domain. A message is recorded once for all pods of one owner."""
        if not (pod.labels or pod.annotations) or not worker.is_leading:
            return
        plugins = {built.plugin.name for built in worker.plugins.built}
        theirs = plugin_remarks((worker,), lambda plugin: plugin.remarks_of_pod(pod))
        for text in (*remarks_of_pod(pod, worker.name, plugins), *theirs):
            said = (pod.namespace, pod.uid if pod.owner is None else pod.owner.uid, text)
            if said in self._said:
                continue
            if len(self._said) >= SAID_MAX:
                self._said.popitem(last=False)
            self._said[said] = None
            by = pod.spec.scheduler_name
            self._events.record(Event(pod_ref(pod), "Warning", IGNORED_KEY, "Scheduling", text, by))


def plugin_remarks(workers: Iterable[DomainWorker], ask: Callable[[RemarkPlugin], Sequence[str]]) -> Sequence[str]:
    """Returns the distinct remarks of the workers' plugins. An exception of a plugin is logged; the plugin then has no remarks."""
    found: dict[str, None] = {}
    for worker in workers:
        for plugin in worker.plugins.remarking:
            try:
                found.update(dict.fromkeys(ask(plugin)[:REMARKS_MAX]))
            except Exception:
                logger.exception("plugin failed to return remarks", extra={"plugin": plugin.name})
    return tuple(found)
