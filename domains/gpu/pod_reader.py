"""PodReader: what pods request and hold of cards. Owned by the ledger.

Pods of a workload share spec, annotations and labels as objects, so what was read of one pod is cached for the others.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Final

import msgspec

from domains.gpu.demand import GpuDemand
from domains.gpu.dialect import Dialect
from domains.gpu.dialects import NO_DEMANDS, PodDemands, all_keys, demands_of, gpu_keys
from domains.gpu.hold import Hold
from multisched.model.objects import Pod
from multisched.model.version import NO_VERSION

DEMANDS_MAX: Final = 1024
"""Maximum number of cached demands, kinds of pods, and their holds: one attempt reads them several times."""


class PodReader:
    """All results depend on the arguments only."""

    def __init__(self, served: frozenset[str] | None, dialects: tuple[Dialect, ...]) -> None:
        """`served`: as for `GpuLedger`."""
        self._served = served
        self._dialects = dialects
        _, self._written, _ = all_keys(dialects)
        self.uses_gpus = gpu_keys(dialects).are_used_by
        self._by_name = {one.name: one for one in dialects}
        self._demands: dict[tuple[int, int, int], tuple[Pod, PodDemands]] = {}
        """Ids of spec, annotations and labels -> a pod with these, and its demands."""
        self._latest, self._latest_demands = Pod("", "", "", NO_VERSION), NO_DEMANDS
        """The latest pod and its demands: the steps of a decision read them repeatedly, also for other pods of the class, which have
        the same objects of all that a demand is read from."""
        self._numbers: dict[Hashable, int] = {}
        self._given = 0
        self._answered: dict[Hashable, tuple[Pod, Hold | None]] = {}
        """Ids of spec and annotations, node, phase and answer -> a pod with these, and what it holds with the answer."""

    def demands(self, pod: Pod) -> PodDemands:
        """Returns the pod's demand in each mode of nodes; false if it requests no GPU."""
        latest = self._latest
        if not (
            pod.spec is latest.spec
            and pod.annotations is latest.annotations
            and pod.labels is latest.labels
            and pod.held is latest.held
        ):
            self._latest, self._latest_demands = pod, self._demands_of(pod)
        return self._latest_demands

    def _demands_of(self, pod: Pod) -> PodDemands:
        key = id(pod.spec), id(pod.annotations), id(pod.labels)
        known = self._demands.get(key)
        if known is not None and pod.held is None:
            return known[1]
        if not self.uses_gpus(pod):
            return NO_DEMANDS
        found = demands_of(pod, self._dialects)
        found = msgspec.structs.replace(found, number=self._number(tuple(found.by_mode.items())))
        if pod.held is None:
            if len(self._demands) >= DEMANDS_MAX:
                self._demands.clear()
            self._demands[key] = pod, found
        return found

    def _number(self, demands: Hashable) -> int:
        """Returns a number for equal demands. No number is ever reused."""
        number = self._numbers.get(demands)
        if number is None:
            if len(self._numbers) >= DEMANDS_MAX:
                self._numbers.clear()
            self._given += 1
            number = self._numbers[demands] = self._given
        return number

    def dialect(self, demand: GpuDemand) -> Dialect:
        """Returns the dialect of the demand."""
        return self._by_name[demand.dialect]

    def hold_with(self, pod: Pod, answer: Mapping[str, str]) -> Hold | None:
        """Returns what the pod holds once it is bound with these annotations."""
        if pod.held is not None:
            return self.hold_of(self.bound(pod, answer))
        key = id(pod.spec), id(pod.annotations), pod.node, pod.phase, tuple(answer.items())
        known = self._answered.get(key)
        if known is None:
            if len(self._answered) >= DEMANDS_MAX:
                self._answered.clear()
            known = self._answered[key] = pod, self.hold_of(self.bound(pod, answer))
        return known[1]

    def hold_of(self, pod: Pod) -> Hold | None:
        """Returns what a placed pod holds, by the first dialect that finds something; None if nothing."""
        if not self.uses_gpus(pod):
            return None
        is_ours = self._is_ours(pod)
        for dialect in self._dialects:
            hold = dialect.hold(pod, is_ours=is_ours)
            if hold is not None:
                return hold
        return None

    def hold_again(self, pod: Pod, held: Hold) -> Hold | None:
        """Returns what a pod holds by the dialect of its known hold. What another dialect reads is fixed once the pod is placed."""
        dialect = self._by_name[held.dialect]
        if not held.awaits and dialect.reported.isdisjoint(pod.annotations):
            return held
        return dialect.hold(pod, is_ours=self._is_ours(pod))

    def _is_ours(self, pod: Pod) -> bool:
        return self._served is None or pod.spec.scheduler_name in self._served

    def bound(self, pod: Pod, answer: Mapping[str, str]) -> Pod:
        """Returns the pod as it will be once it is bound with these annotations."""
        own = {key: text for key, text in pod.annotations.items() if key not in self._written}
        return msgspec.structs.replace(pod, annotations={**own, **answer})
