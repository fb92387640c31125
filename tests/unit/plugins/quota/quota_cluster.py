"""A cluster with a tree of quotas: pods come, are decided by real cycles, and whoever is reclaimed from waits again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import orjson

from multisched.cycle.results import Conflicted, GangResult, Placed, Result, Unplaced
from multisched.framework.points import QueuedGang, QueuedPod
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Node, Pod
from multisched.plugins.quota.quota_ledger import QUOTA, QuotaLedger
from multisched.testing.builders import make_pod
from tests.unit.cycle.cycle_kit import Domain
from tests.unit.model.quotas.quota_documents import kind_of
from tests.unit.plugins.quota.trees import Json
from tests.unit.state.gang_kit import GANG_LABEL, set_minimum

NO_LABELS: Final[Mapping[str, str]] = {}
IN_TREE: Final = ("NodeResourcesFit", QUOTA, "DefaultPreemption")


class QuotaCluster:
    """Nodes, a tree, and pods that a controller replaces when they are evicted."""

    def __init__(
        self, nodes: Sequence[Node], tree: Json | None, in_tree: Sequence[str] = IN_TREE, **args: object
    ) -> None:
        """`args`: of the plugin."""
        self.domain = Domain(*nodes, in_tree=in_tree, args={QUOTA: args})
        self.pending: dict[str, Pod] = {}
        self.evicted: list[tuple[str, ...]] = []
        """Names of the victims of each preemption."""
        self.taker_of: list[str] = []
        self.clock = 0
        self._version = 0
        if tree is not None:
            self.set_tree(tree)

    def set_tree(
        self, root: Json, *, name: str = "tree", namespace: str = "kube-system", uid: str = "uid-tree"
    ) -> None:
        self._version += 1
        metadata = {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": str(self._version)}
        kind = ObjectKind.ELASTIC_QUOTA_TREE
        api = {"apiVersion": kind.definition.api_version, "kind": kind.definition.name}
        self.put({**api, "metadata": metadata, "spec": {"root": root}})

    def put(self, *documents: Json) -> None:
        """Quota objects of any API."""
        for document in documents:
            kind = kind_of(document)
            self.domain.cache.objects.set(kind, kind.definition.decode(orjson.dumps(document)))

    def protect(self, name: str, namespace: str, labels: Mapping[str, str], allowed: int) -> None:
        """A PodDisruptionBudget that so many more pods may be taken of."""
        document = {
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"selector": {"matchLabels": dict(labels)}},
            "status": {"disruptionsAllowed": allowed},
        }
        kind = ObjectKind.POD_DISRUPTION_BUDGET
        self.domain.cache.objects.set(kind, kind.definition.decode(orjson.dumps(document)))

    @property
    def ledger(self) -> QuotaLedger:
        found = next(one for one in self.domain.cache.ledgers if one.name == QUOTA)
        ledger = getattr(found, "cluster", None)
        assert isinstance(ledger, QuotaLedger)
        ledger.renew()
        return ledger

    def add(
        self,
        name: str,
        namespace: str,
        cpu_milli: int,
        *,
        memory_bytes: int = 0,
        priority: int = 0,
        node: str = "",
        labels: Mapping[str, str] = NO_LABELS,
        gang: str = "",
    ) -> Pod:
        """`gang`: one of the pod's namespace, whose minimum `set_minimum` says."""
        pod = make_pod(
            name,
            cpu_milli=cpu_milli,
            memory_bytes=memory_bytes,
            priority=priority,
            node=node,
            namespace=namespace,
            labels={**labels, GANG_LABEL: gang} if gang else labels,
        )
        self.domain.cache.gangs.set(pod)
        if node:
            self.clock += 1
            self.domain.cache.place(msgspec.structs.replace(pod, started_s=float(self.clock)))
        else:
            self.pending[pod.uid] = pod
        return pod

    def set_minimum(self, gang: str, namespace: str, least: int) -> None:
        """So many of a gang start together."""
        set_minimum(self.domain.cache, gang, least, namespace)

    def leaves(self, name: str) -> None:
        """A placed pod is being deleted."""
        entry = self.domain.cache.placed(f"uid-{name}")
        assert entry is not None
        pod = msgspec.structs.replace(entry.pod, is_deleting=True)
        self.domain.cache.gangs.set(pod)
        self.domain.cache.place(pod)

    def attempt(self, pod: Pod) -> Result:
        """One attempt; what it decides is carried out at once: bound, or its victims evicted and replaced."""
        result = self.domain.schedule(pod)
        if isinstance(result, Placed):
            self._stands(pod, result.node)
        elif isinstance(result, Unplaced):
            if result.nominated_node is not None:
                rank = None if result.preemption is None else result.preemption.rank
                self.domain.nominator.nominate(pod, result.nominated_node, rank)
            self._evict(result.victims, pod.name)
        else:
            assert isinstance(result, Conflicted)
        return result

    def attempt_gang(self, key: str) -> GangResult:
        """One attempt of all members of a gang that wait, as the queue would have it; carried out at once."""
        result = self.decided_gang(key)
        for placed in result.placed:
            self._stands(placed.pod, placed.node)
        preemption = next((one.preemption for one in result.unplaced if one.preemption is not None), None)
        if preemption is not None:
            for nominated, node in preemption.nominations:
                self.domain.nominator.nominate(nominated, node, preemption.rank)
            self._evict(preemption.every_victim, key)
        return result

    def decided_gang(self, key: str) -> GangResult:
        """What comes of an attempt: if its members find nodes, they are assumed."""
        roster = self.domain.cache.gangs
        waiting = sorted((pod for pod in self.pending.values() if roster.key_of(pod.uid) == key), key=_importance)
        members = tuple(QueuedPod(pod, 0.0, 1) for pod in waiting)
        needs = min(roster.needs(key), len(members)) or len(members)
        running = self.domain.cycle.attempt(QueuedGang(members, {key: needs}, {pod.uid: key for pod in waiting}))
        try:
            next(running)
        except StopIteration as ended:
            result: GangResult = ended.value
            return result
        raise AssertionError("nobody asks outside")

    def waiting_gangs(self) -> list[str]:
        """Gangs of which enough members wait for it to start."""
        roster = self.domain.cache.gangs
        counts = Counter(filter(None, map(roster.key_of, self.pending)))
        return sorted(key for key, count in counts.items() if 0 < roster.needs(key) <= count)

    def waiting_singly(self) -> list[Pod]:
        """Who waits without a gang, or for a gang that has its minimum."""
        roster = self.domain.cache.gangs
        return [
            pod for pod in self.pending.values() if (key := roster.key_of(pod.uid)) is None or not roster.needs(key)
        ]

    def _stands(self, pod: Pod, node: str) -> None:
        self.clock += 1
        del self.pending[pod.uid]
        placed = msgspec.structs.replace(pod, node=node, started_s=float(self.clock))
        self.domain.cache.gangs.set(placed)
        self.domain.cache.place(placed)

    def _evict(self, victims: Sequence[Pod], taker: str) -> None:
        if victims:
            self.evicted.append(tuple(victim.name for victim in victims))
            self.taker_of.append(taker)
        for victim in victims:
            self._replace(victim)

    def _replace(self, victim: Pod) -> None:
        self.domain.cache.remove(victim.uid)
        self.domain.cache.gangs.remove(victim.uid)
        number = int(victim.name.rpartition("~")[2]) + 1 if "~" in victim.name else 1
        name = f"{victim.name.partition('~')[0]}~{number}"
        again = msgspec.structs.replace(victim, name=name, uid=f"uid-{name}", node="", started_s=0.0)
        self.domain.cache.gangs.set(again)
        self.pending[again.uid] = again

    def settle(self, rounds_max: int = 200) -> int:
        """Tries everybody until nothing changes; how many rounds it took. AssertionError if it never ends."""
        for round_ in range(rounds_max):
            before = sorted(self.pending), len(self.evicted)
            for key in self.waiting_gangs():
                self.attempt_gang(key)
                self.check()
            for pod in self.waiting_singly():
                if pod in self.waiting_singly():  # an earlier attempt may have evicted the pod's gang
                    self.attempt(pod)
                    self.check()
            if (sorted(self.pending), len(self.evicted)) == before:
                return round_
        raise AssertionError(f"it goes back and forth: {self.evicted[-8:]}")

    def check(self) -> None:
        """No level over a max, and each holds what its pods do."""
        for level in self.ledger.levels:
            for resource, most in level.max.items():
                assert level.used.get(resource, 0) <= most, f"{level.path} holds {level.used}"
        rebuilt = self.ledger.empty_copy()
        for entry in self.domain.cache:
            if rebuilt.is_used_by(entry.pod):
                rebuilt.restore(entry.pod)
        for gang in self.domain.cache.gangs.gangs():
            assert not gang.placed_count or gang.needs <= 0, f"gang {gang.key} stands below its minimum"
        assert self.ledger.sums() == rebuilt.sums()
        assert self.ledger.held() == rebuilt.held()

    def running(self) -> dict[str, int]:
        """Namespace -> pods that stand on nodes."""
        found: dict[str, int] = {}
        for entry in self.domain.cache:
            found[entry.pod.namespace] = found.get(entry.pod.namespace, 0) + 1
        return found


def _importance(pod: Pod) -> tuple[int, str]:
    return -pod.spec.priority, pod.name
