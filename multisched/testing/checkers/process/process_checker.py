"""A process checker inside one simulated process: what it assumes, what it believes, and what it holds, moment by moment.

Beside the API server's bind checker it sees what never leaves the process: an assumption on a row that does not take the pod
(I1, I7, I8), a cache that goes back in time (I6), an index past its bound (I10). It changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from domains.gpu.gpu_ledger import GpuLedger
from multisched.config.schema import Configuration, DomainConfig
from multisched.framework.ledger import NO_CHOICES, Choices
from multisched.framework.objects_view import ObjectKind
from multisched.framework.ports import Condition, LeaseHolder, ObjectRef
from multisched.framework.preemption import Preemption
from multisched.model.cluster_objects import PersistentVolume, PodDisruptionBudget
from multisched.model.objects import PODS, Node, Pod
from multisched.plugins.volumes.volume_ledger import Promise, PromisedVolume, VolumeLedger
from multisched.queueing.events_in_flight import IN_FLIGHT_EVENTS_MAX
from multisched.queueing.gating import FAILED
from multisched.queueing.transitions import Place
from multisched.shell.domain import DomainWorker
from multisched.shell.preemptor import Home
from multisched.shell.program import Program
from multisched.state.cluster_cache import Assumption
from multisched.testing.checkers.api.bind_checker import BindChecker
from multisched.testing.checkers.process.attempts import AttemptChecker
from multisched.testing.checkers.process.classes import ClassChecker
from multisched.testing.checkers.process.events import EventChecker
from multisched.testing.checkers.process.feasible_nodes import FeasibleNodes
from multisched.testing.checkers.process.mirror import (
    Alike,
    fault_of_cache,
    fault_of_emptiness,
    fault_of_ledgers,
    fault_of_promises,
    fault_of_rows,
    leftover,
)
from multisched.testing.checkers.process.requeues import RequeueChecker
from multisched.testing.checkers.process.sandbox import SandboxChecker
from multisched.testing.checkers.process.scores import ScoreChecker
from multisched.testing.checkers.told import Homes, Told
from multisched.testing.loop.sim_loop import SimLoop
from multisched.testing.plugins.permit_holds import HoldLonger
from multisched.testing.plugins.reserve_tally import ReserveTally
from multisched.testing.rules.devices import fault_of_choice, fraction_wanted
from multisched.testing.rules.inter_pod import Standing, allows, clash, keeps_off
from multisched.testing.rules.preemption import fault_of_preemption
from multisched.testing.rules.victims import broken_for_certain, fault_of_victims, is_plain, would_do
from multisched.testing.world.api_user import NAMESPACE
from multisched.testing.world.labels import GPU_DEVICES


class _Metadata(msgspec.Struct, gc=False):
    uid: str
    version: str = msgspec.field(name="resourceVersion")


class _Object(msgspec.Struct, gc=False):
    metadata: _Metadata


_decoder = msgspec.json.Decoder(_Object)
DEEP_EVERY, ASKED_EVERY = 8, 4
"""Looks between two that go through all books, and between two at queues, at what is parked, and at what has not moved."""
PACKING = "gpu"
"""The domain whose default profile prefers full nodes."""
LATE_S = 0.75
"""What a timer of the program may be late."""


class ProcessChecker:
    """Stands by one program from its start."""

    def __init__(
        self,
        program: Program,
        configuration: Configuration,
        bind_checker: BindChecker,
        identity: str,
        loop: SimLoop,
        *,
        is_plain: bool,
        is_steady: bool,
    ) -> None:
        """`is_plain`: no plugin asks outside or fails, so that each answer hangs on what was told alone. `is_steady`: none that
        was drawn refuses or fails by itself."""
        self.program = program
        self._bind_checker = bind_checker
        self._identity = identity
        policies = {domain.name: domain.policy.compile() for domain in configuration.domains}
        self.told = bind_checker.told[identity] = Told(
            bind_checker.objects.reader, Homes(configuration).usable_by, policies
        )
        self._domain_of = {name: d.name for d in configuration.domains for name in d.scheduler_names}
        self._binds_max = {d.name: d.concurrency.max_in_flight_binds for d in configuration.domains}
        self._is_plain = is_plain
        self._sees_all = not any(_may_overlook(domain) for domain in configuration.domains)
        """A preemption looks at all nodes: extenders and arguments may leave some out, and what plugins elsewhere answer is as old
        as their question."""
        self._versions: dict[str, int] = {}
        self._gone: set[str] = set()
        self._was_rewound = False
        self.may_hear_twice = False
        """Some object is told as no watch does: anew, in the version that it had."""
        self.is_tampered_with = False
        """Its memory has been made wrong, and the audit is at it: what it holds is no fault of its own."""
        for plugin in self._reserve_books():
            plugin.on_bound = self.bound
        self._uids: dict[str, str] = {}
        self._upsert, self._delete = program.pods.upsert, program.pods.delete
        program.pods.upsert = self.upsert  # type: ignore[method-assign]
        program.pods.delete = self.delete  # type: ignore[method-assign]
        self._drop = program.pods.drop
        program.pods.drop = self.drop  # type: ignore[method-assign]
        self._upsert_node, self._delete_node = program.nodes.upsert, program.nodes.delete
        program.nodes.upsert = self.upsert_node  # type: ignore[method-assign]
        program.nodes.delete = self.delete_node  # type: ignore[method-assign]
        self._assume, self._forget = program.cache.assume, program.cache.forget
        program.cache.assume = self.assume  # type: ignore[method-assign]
        program.cache.forget = self.forget  # type: ignore[method-assign]
        self.events = EventChecker(program.events, identity, bind_checker.complain)
        self._write = program.conditions.write
        program.conditions.write = self.write  # type: ignore[method-assign]
        self._preempt = program.preemptor.start
        program.preemptor.start = self.preempt  # type: ignore[method-assign]
        self._looks = 0
        self._alike: Alike = {}
        self._seen = (0, 0)
        """What had been told, and written to rows, by the last look."""
        self._is_stirred = True
        """Some of that has moved since the last look through all books."""
        self._is_paused = partial(loop.is_paused, identity)
        self._requeues: list[RequeueChecker] = []
        self._classes: list[ClassChecker] = []
        feasible = FeasibleNodes(program, self.told, self._is_used_by) if is_steady else None
        for worker, domain in zip(program.router.workers(), configuration.domains, strict=True):
            judged = frozenset(p.name for p in (*worker.plugins.pre_filter, *worker.plugins.filter))
            AttemptChecker(worker.name, worker.queue, domain.queue, bind_checker.complain, feasible, judged).begin()
            self._requeues.append(
                RequeueChecker(program, worker, bind_checker.complain, self._is_paused, is_steady=is_steady)
            )
            if is_plain:
                self._check_classes(worker, configuration)
            worker.lead = partial(self.lead, worker, worker.lead)  # type: ignore[method-assign]
        bind_checker.leases.believers[identity] = self.may_bind

    def _check_classes(self, worker: DomainWorker, configuration: Configuration) -> None:
        """Its answers are compared with such as nothing was kept for, and its scores with the formulas."""
        table, complain = self.program.cache.nodes, self._bind_checker.complain
        scores = ScoreChecker(
            self.told,
            table,
            complain,
            is_packing=worker.name == PACKING,
            domain=worker.name,
            plugins={bound.name for bound in worker.plugins.score},
            free_devices=self._free_devices,
        )
        sandbox = SandboxChecker(self.program, configuration, worker, complain)
        rows = self.program.router.rows_of(worker)
        self._classes.append(ClassChecker(worker, table, rows, scores, sandbox, complain))

    def look_closely(self, *, is_on: bool) -> None:
        """At each class that is found, instead of one in many: for a while."""
        for classes in self._classes:
            classes.is_close = is_on

    def _free_devices(self, name: str) -> Sequence[int]:
        ledger, row = self._gpus(), self.program.cache.nodes.row_of(name)
        return ledger.devices(row).free if ledger is not None and row is not None else ()

    def _gpus(self) -> GpuLedger | None:
        return next((one for one in self.program.cache.ledgers if isinstance(one, GpuLedger)), None)

    # -- each word of the watch ------------------------------------------------------------------------------------

    def upsert(self, key: str, raw: msgspec.Raw) -> None:
        """Stands before `PodIngest.upsert`: no version goes back, and no deleted uid comes again (I6)."""
        freed = self.told.pod_told(key, raw)
        for requeues in self._requeues if freed else ():
            requeues.look_at(freed)
        try:
            metadata = _decoder.decode(raw).metadata
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._upsert(key, raw)
            return
        uid, version = metadata.uid, int(metadata.version)
        if uid in self._gone and not self._was_rewound:
            self._bind_checker.complain(f"I6: {key} ({uid}), which was deleted, came back")
        if version < self._versions.get(uid, 0) and not self._was_rewound:
            self._bind_checker.complain(f"I6: {key} went back from version {self._versions[uid]} to {version}")
        may_repeat = self.may_hear_twice or self._was_rewound or self.program.audit.statistics().lost
        if version == self._versions.get(uid) and not may_repeat:
            self._bind_checker.complain(f"I6: {key} was handed on in version {version} twice")
        if uid not in self._versions:
            self._bind_checker.policies.heard_of(self._identity, uid)
        self._versions[uid] = version
        self._uids[key] = uid
        self._upsert(key, raw)

    def delete(self, key: str, raw: msgspec.Raw | None) -> None:
        uid = self._uids.pop(key, "")
        self._gone.add(_decoder.decode(raw).metadata.uid if raw is not None else uid)
        self.told.pod_gone(key)
        self._delete(key, raw)

    def drop(self, uid: str) -> None:
        self.told.drop(uid)
        self._drop(uid)

    def upsert_node(self, key: str, raw: msgspec.Raw) -> None:
        self.told.node_told(key, raw)
        self._upsert_node(key, raw)

    def delete_node(self, key: str, raw: msgspec.Raw | None) -> None:
        self.told.node_gone(key)
        self._delete_node(key, raw)

    def rewound(self) -> None:
        """A backup was restored: versions go back, and what was deleted may come again."""
        self._versions.clear()
        self._was_rewound = True

    def write(self, pod: ObjectRef, condition: Condition, lease: LeaseHolder) -> None:
        """Stands before `ApiConditionWriter.write`: what an owner is told from now on."""
        self.told.said[pod.uid] = condition.message
        self.events.said(pod.uid, condition.message)
        self._write(pod, condition, lease)

    # -- each assumption -------------------------------------------------------------------------------------------

    def assume(self, pod: Pod, row: int, choices: Choices = NO_CHOICES) -> Assumption:
        """Stands before `ClusterCache.assume`: the last moment at which the cache can be held to its own word."""
        table = self.program.cache.nodes
        node = table.node(row)
        domain = self._domain_of[pod.spec.scheduler_name]
        for resource, amount in {**pod.spec.requests, PODS: 1}.items():
            used = int(table.pod_count[row]) if resource == PODS else int(table.requested(resource)[row])
            if used + amount > node.allocatable.get(resource, 0):
                self._bind_checker.complain(
                    f"I1: {pod.key} was assumed on {node.name}, which has no room for its {resource}"
                )
        known = self.told.nodes.get(node.name)
        fault = "which is gone" if known is None else self.told.fault_of_node(pod, domain, known)
        if fault:
            self._bind_checker.complain(f"I8: {pod.key} was assumed on {node.name}, {fault}")
        pending = self.program.pods.pending.get(pod.uid)
        if pending is None and self._has_come_back(pod):
            pending = pod  # the answer about its lost bind was the first word of it since it came back with a backup
            self.told.read(pod)
        if pending is None:
            self._bind_checker.complain(f"I7: {pod.key} was assumed after the watch had said that it is gone")
        elif pending.gates:
            self._bind_checker.complain(f"I7: {pod.key} was assumed while gated")
        self._check_rules(pod, node, domain)
        self._bind_checker.assumed(pod.uid, node.name)
        free = tuple(self._free_devices(node.name)) if fraction_wanted(pod.annotations) else ()
        assumption = self._assume(pod, row, choices)
        if free:
            self._check_devices(pod, row, free)
        self.told.assumed(pod.uid, node.name)
        if pod.spec.volumes:
            self._check_promises()
        return assumption

    def forget(self, uid: str) -> bool:
        self.told.given_up(uid)
        if self.program.cache.is_assumed(uid):
            self._bind_checker.given_up(self._identity, uid)
        return self._forget(uid)

    def _has_come_back(self, pod: Pod) -> bool:
        """A restored backup has it, which had been deleted."""
        known = self._bind_checker.pods().get(pod.key) if self._was_rewound else None
        return known is not None and known.uid == pod.uid

    def _check_devices(self, pod: Pod, row: int, free: Sequence[int]) -> None:
        """A fraction leaves whole devices to those that need them."""
        ledger = self._gpus()
        hold = ledger.hold(pod.uid, row) if ledger is not None and GPU_DEVICES not in pod.annotations else None
        fault = fault_of_choice(free, hold.devices, hold.milli) if hold is not None and hold.devices else ""
        if fault:
            self._bind_checker.complain(f"I12: {pod.key} on {self.program.cache.nodes.node(row).name}: {fault}")

    def _check_promises(self) -> None:
        """I1 of volumes, before anything is written: each is promised to one claim.

        One that the controller has meanwhile bound to another claim than it was promised to does not count: the API server
        refuses that promise's write.
        """
        promised: dict[str, str] = {}
        for volume in self._promised_volumes():
            known = self.program.cache.objects.get(ObjectKind.PERSISTENT_VOLUME, "", volume.volume)
            bound_to = known.claim if isinstance(known, PersistentVolume) else None
            if bound_to is not None and bound_to.uid not in ("", volume.claim_id):
                continue
            if promised.setdefault(volume.volume, volume.claim_id) != volume.claim_id:
                self._bind_checker.complain(f"I1: volume {volume.volume} is promised to two claims")

    def _promised_volumes(self) -> list[PromisedVolume]:
        ledgers = [ledger for ledger in self.program.cache.ledgers if isinstance(ledger, VolumeLedger)]
        promises = [promise for ledger in ledgers for promise in ledger.held().values()]
        return [volume for promise in promises if isinstance(promise, Promise) for volume in promise.volumes]

    def _check_rules(self, pod: Pod, node: Node, domain: str) -> None:
        """I1 of room and of pods that relate to each other, by what was told, and of room that was promised."""
        known, standing = self.told.nodes.get(node.name), self.told.standing()
        if known is not None:
            lack = self.told.lack(known, self.told.pods.get(pod.uid, pod))
            if lack:
                self._bind_checker.complain(f"I1: {pod.key} was assumed on {node.name}, {lack}")
            if not allows(pod, known, self.told.nodes.values(), standing, self.told.is_usable(domain)):
                self._bind_checker.complain(f"I1: {pod.key} was assumed on {node.name} against a rule about other pods")
        cache = self.program.cache
        row = cache.nodes.row_of(node.name)
        promised = [p for p in self.program.nominator.on(node.name) if p.uid != pod.uid and not cache.placed(p.uid)]
        ahead = [p for p in promised if p.spec.priority >= pod.spec.priority]
        for other in ahead:
            if clash(pod, other) is not None:
                self._bind_checker.complain(
                    f"I1: {pod.key} was assumed on {node.name}, whose port is promised to {other.key}"
                )
        for resource in pod.spec.requests if ahead and row is not None else ():
            used = int(cache.nodes.requested(resource)[row])
            wanted = used + sum(p.spec.requests.get(resource, 0) for p in [pod, *ahead])
            if wanted > node.allocatable.get(resource, 0):
                self._bind_checker.complain(f"I1: {pod.key} was assumed on {node.name}, whose {resource} is promised")

    def _is_used_by(self, domain: str) -> Callable[[Node], bool]:
        """The nodes that the process may use for the domain at this moment: one that joined may be withheld for a while."""
        router, table = self.program.router, self.program.cache.nodes
        rows = next(router.rows_of(worker) for worker in router.workers() if worker.name == domain)

        def is_used(node: Node) -> bool:
            row = table.row_of(node.name)
            return row is not None and rows.has(row)

        return is_used

    def preempt(self, pod: Pod, preemption: Preemption, home: Home) -> bool:
        """Stands before `Preemptor.start`: one preemption of a pod at a time, and only of what is less urgent."""
        if self.program.preemptor.is_preempting(pod.uid):
            self._bind_checker.complain(f"I5: {pod.key} preempts while its victims are being asked to go")
        for victim in preemption.victims:
            if victim.spec.priority >= pod.spec.priority:
                self._bind_checker.complain(f"I7: {pod.key} is to preempt {victim.key}, which is as urgent")
        self._check_victims(pod, preemption)
        return self._preempt(pod, preemption, home)

    def _check_victims(self, pod: Pod, preemption: Preemption) -> None:
        """I7: all victims together are enough, and each is needed; no budget is broken where some node would do without."""
        cache, domain = self.program.cache, self._domain_of[pod.spec.scheduler_name]
        nodes = {node.name: node for _, node in cache.nodes.live_rows()}
        standing = [(e.pod, nodes[e.node]) for e in cache if not e.pod.is_terminal and e.node in nodes]
        is_usable, is_used = self.told.is_usable(domain), self._is_used_by(domain)
        if self._is_plain and preemption.node in nodes:
            node = nodes[preemption.node]
            fault = self.told.fault_of_node(pod, domain, node) or fault_of_preemption(
                pod, node, preemption.victims, nodes.values(), standing, is_usable, cache.objects
            )
            if fault:
                self._bind_checker.complain(f"I7: {pod.key} is to preempt on {node.name} in vain: {fault}")
        if not is_plain(pod) or not self._sees_all:
            return
        standing += self._promised_before(pod, nodes, standing)
        known = cache.objects.all(ObjectKind.POD_DISRUPTION_BUDGET)
        budgets = [budget for budget in known if isinstance(budget, PodDisruptionBudget)]
        if preemption.node in nodes:
            fault = fault_of_victims(
                pod, nodes[preemption.node], preemption.victims, nodes.values(), standing, is_usable, budgets
            )
            if fault:
                self._bind_checker.complain(f"I7: {pod.key} is to preempt on {preemption.node}: {fault}")
        broken = broken_for_certain(budgets, preemption.victims)
        for node in filter(is_used, nodes.values()) if broken else ():
            if would_do(pod, node, budgets, nodes.values(), standing, is_usable):
                self._bind_checker.complain(
                    f"I7: {pod.key} is to break the budget {broken} on {preemption.node}, and need not on {node.name}"
                )
                return

    def _promised_before(self, pod: Pod, nodes: Mapping[str, Node], standing: Sequence[Standing]) -> Sequence[Standing]:
        """Pods that are promised a node before this one, which has no rules about others itself.

        As upstream, their own rules count where some pod that stands has one about this pod: else InterPodAffinity skips it.
        """
        cache, found = self.program.cache, []
        is_kept_off = any(keeps_off(other, there, pod) for other, there in standing)
        for name, node in nodes.items():
            for other in self.program.nominator.on(name):
                if other.uid == pod.uid or cache.placed(other.uid) or other.spec.priority < pod.spec.priority:
                    continue
                spec = other.spec if is_kept_off else msgspec.structs.replace(other.spec, pod_affinity=None)
                found.append((msgspec.structs.replace(other, spec=spec), node))
        return found

    def bound(self, pod: Pod, node: str) -> None:
        """What counts as bound is bound, and just there (I2); it may be deleted already."""
        if self._bind_checker.bound.get(pod.uid) != node and (pod.uid, node) not in self._bind_checker.faked:
            there = self._bind_checker.bound.get(pod.uid)
            self._bind_checker.complain(f"I2: {pod.key} counts as bound to {node}; it is on {there}")

    # -- now and then ----------------------------------------------------------------------------------------------

    def look(self) -> None:
        """I4, I5, I9 and I10 at this moment."""
        if self.is_tampered_with:
            return
        self._looks += 1
        self._complain_of(fault_of_promises(self.program))
        has_moved = self._has_moved()
        self._is_stirred |= has_moved
        if has_moved or not self._looks % ASKED_EVERY:
            self._complain_of(fault_of_cache(self.program, self.told, self._alike))
        if not self._looks % DEEP_EVERY and self._is_stirred:
            self._is_stirred = False
            self._look_deep()
        for worker in self.program.router.workers():
            if worker.limit.in_flight > self._binds_max[worker.name]:
                self._bind_checker.complain(f"I10: {worker.limit.in_flight} binds of {worker.name} in flight")
        for worker in self.program.router.workers() if not self._is_paused() else ():
            self._check_permits(worker)
        for requeues in self._requeues:
            requeues.look_for_work()
            requeues.look()
        if not self._looks % ASKED_EVERY:
            self._look_at_queues()

    def _has_moved(self) -> bool:
        """Something was told, or some row was written, since the last look."""
        before, self._seen = self._seen, (self.told.changes, self.program.cache.nodes.row_log.sequence)
        return before != self._seen

    def _look_at_queues(self) -> None:
        for worker in self.program.router.workers():
            statistics = worker.queue.statistics()
            if statistics.in_flight_events > IN_FLIGHT_EVENTS_MAX or (
                statistics.in_flight_events and not statistics.in_flight
            ):
                self._bind_checker.complain(f"I10: {worker.name} keeps {statistics.in_flight_events} events")

    def _check_permits(self, worker: DomainWorker) -> None:
        """I5: who waits at Permit is turned back when the first plugin's time is over, and bound when all have let it go."""
        for plugin in worker.plugins.permit:
            if isinstance(plugin, HoldLonger):
                late = plugin.overdue(worker.waiting.holders, LATE_S)
                self._complain_of(*plugin.broken, *(f"I5: {uid} is held at Permit past its time" for uid in late))

    def _look_deep(self) -> None:
        self._complain_of(fault_of_rows(self.program, self.told), fault_of_ledgers(self.program))
        for worker in self.program.router.workers():
            try:
                worker.queue.validate()
            except AssertionError as error:
                self._complain_of(f"I3: {error}")

    def _complain_of(self, *faults: str) -> None:
        for fault in faults:
            if fault:
                self._bind_checker.complain(f"{fault} ({self._identity})")

    def may_bind(self, domain: str) -> bool:
        """What the process believes of its lease."""
        keeper = self.program.leases.get(domain)
        return keeper is not None and keeper.may_bind()

    def lead(self, worker: DomainWorker, lead: Callable[[], None]) -> None:
        """Stands before `DomainWorker.lead`: who begins to decide knows of every bind that was made before (I9)."""
        is_used = self._is_used_by(worker.name)
        for pod in self._bind_checker.bound_pods():
            node = self.told.nodes.get(pod.node)
            known = self.told.pods.get(pod.uid)
            is_known = self.told.held.get(pod.uid) == pod.node or (known is not None and known.node == pod.node)
            if node is not None and is_used(node) and not is_known and pod.uid not in self.told.unknowable:
                self._bind_checker.complain(
                    f"I9: {self._identity} leads {worker.name}, and knows nothing of {pod.key} on {pod.node}"
                )
                break
        lead()

    def check_rest(self) -> None:
        """What must be over when all is done."""
        self._complain_of(leftover(self.program), fault_of_cache(self.program, self.told, self._alike))
        self._look_deep()
        for requeues in self._requeues:
            requeues.check_rest()

    def check_told(self, since_s: float, condition_of: Callable[[str], str]) -> None:
        """The owner of each pod that was refused since then has been told why in the words of the last refusal (I3)."""
        for worker in self.program.router.workers():
            for entry in worker.queue.entries() if worker.is_leading else ():
                is_late = entry.place is Place.UNSCHEDULABLE and not entry.is_quarantined and entry.since_s >= since_s
                told = condition_of(entry.pod.name) if is_late and entry.pod.namespace == NAMESPACE else entry.message
                is_of_a_cycle = not told.startswith(FAILED)  # a failure on the way back to the queue is told too
                if told != entry.message and is_of_a_cycle:
                    self._complain_of(f"I3: the owner of {entry.pod.key} was told {told!r}, not {entry.message!r}")

    def check_nominations(self) -> None:
        """Whoever leads the pod's domain next reads of its promise what is written on it (I5)."""
        nominator = self.program.nominator
        leading = [worker.queue for worker in self.program.router.workers() if worker.is_leading]
        for pod in self._bind_checker.pods().values():
            entry = next((queue.entry(pod.uid) for queue in leading if queue.entry(pod.uid) is not None), None)
            promised = nominator.node_of(pod.uid)
            if entry is not None and not entry.is_quarantined and promised != pod.nominated_node:
                self._complain_of(
                    f"I5: {pod.key} was promised {promised!r}, and {pod.nominated_node!r} is written on it"
                )

    def has_heard_all(self) -> bool:
        """Of the deletion of every pod, and has nothing more to do about any."""
        is_deciding = any(len(worker.queue) for worker in self.program.router.workers())
        return not (self.told.pods or is_deciding or leftover(self.program))

    def check_emptied(self) -> None:
        """Once all pods are gone, nothing is kept for any of them (I5)."""
        self.check_rest()
        self._complain_of(fault_of_emptiness(self.program))

    def check_reserves(self, *, is_at_rest: bool) -> None:
        """I5, as the books of the profile's own ReservePlugin have it."""
        for plugin in self._reserve_books():
            for sentence in plugin.broken:
                self._bind_checker.complain(sentence)
            if is_at_rest and plugin.open:
                self._bind_checker.complain(f"I5: {len(plugin.open)} reserves never ended")

    def _reserve_books(self) -> list[ReserveTally]:
        plugins = [plugin for worker in self.program.router.workers() for plugin in worker.plugins.reserve]
        return [plugin for plugin in plugins if isinstance(plugin, ReserveTally)]


def _may_overlook(domain: DomainConfig) -> bool:
    entries = domain.profile.plugins.enabled
    is_narrowed = any(one.name == "DefaultPreemption" and one.args for one in entries)
    return is_narrowed or bool(domain.extenders) or any(one.isolation is not None for one in entries)
