"""Replicas of a lender and a borrower over an API that delays, loses and repeats writes: one random story per seed.

Every step is atomic, as in the program: it checks the lease, decides, and hands its request to the network. Slice writes may arrive
at any later time. A bind arrives before its deadline or not at all. Watches lag without limit. Replicas are killed, or paused for longer
than a lease lasts.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Final

import msgspec

from multisched.framework.slice_writes import SliceAnswer, SliceReply, SliceRequest
from multisched.model.cluster_objects import SliceSet
from multisched.model.slice_parts import NOTHING, SliceAmount, SliceOffer
from multisched.plugins.slices.borrower_slices import BorrowerSlices
from multisched.plugins.slices.lender_slices import LenderSlices
from tests.unit.plugins.loans.slices.slice_api import Document, PodRecord, SliceApi
from tests.unit.plugins.loans.slices.slice_judge import BORROWER, LENDER, Amount, SliceJudge

DURATION_S: Final = 30
RENEW_DEADLINE_S: Final = 20
PARTS_EVERY_S = 5
"""How often a borrower returns parts of what is recalled."""
BIND_DEADLINE_S: Final = 5
NAMESPACE: Final = "multisched-system"
ALLOCATABLE: Final[Mapping[str, Amount]] = {"node-a": (20, 200, 12), "node-b": (12, 300, 9)}
UNKNOWN: Final = SliceReply(SliceAnswer.UNKNOWN)


def amount_of(amount: Amount) -> SliceAmount:
    return SliceAmount(*amount)


class Lease(msgspec.Struct):
    holder: str = ""
    renewed_s: int = -1_000

    def is_free(self, now_s: int) -> bool:
        return now_s >= self.renewed_s + DURATION_S


class Message(msgspec.Struct, eq=False):
    """A request in the network."""

    sender: Replica
    life: int
    """The sender's life: a process that was killed gets no response."""
    request: SliceRequest
    arrives_from_s: int
    reply: SliceReply | None = None
    is_arrived: bool = False


class Bind(msgspec.Struct, eq=False):
    sender: Replica
    life: int
    pod: PodRecord
    deadline_s: int
    is_ended: bool = False


class Replica:
    """One process of one side."""

    def __init__(self, world: SliceWorld, side: str, name: str) -> None:
        self.world = world
        self.side = side
        self.name = name
        self.life = 0
        self.paused_until_s = 0
        self.lags_until_s = 0
        """Its watches show nothing before."""
        self.delay_s = 0
        """Of its requests."""
        self.start()

    def start(self) -> None:
        """Starts without any memory: as a new process."""
        self.life += 1
        self.phase = "standby"
        self.machine: LenderSlices | BorrowerSlices = (
            self.world.lender(LENDER, BORROWER, NAMESPACE, 1)
            if self.side == LENDER
            else self.world.borrower(LENDER, BORROWER, NAMESPACE)
        )
        self.renewed_s = -1_000
        self.acts_from_s = 0
        self.has_begun = False
        """The machine knows the current term."""
        self.listed: list[SliceSet] | None = None
        self.listed_pods: list[PodRecord] | None = None
        self.pods: dict[str, PodRecord] = {}
        """Charged: assumed, of unknown outcome, bound and not seen to be gone."""
        self.unknown: dict[str, int] = {}
        """Pods with a bind of unknown outcome -> when it cannot arrive any more."""
        self.seen_slices = len(self.world.api.slice_events)
        self.seen_pods = len(self.world.api.pod_events)
        self.sent_with: Mapping[str, SliceAmount] = {}
        """What was charged when requests were last asked for."""
        self.adoption: tuple[SliceSet, dict[str, SliceAmount]] | None = None

    # -- lease -----------------------------------------------------------------------------------------------------

    @property
    def lease(self) -> Lease:
        return self.world.leases[self.side]

    def may_act(self) -> bool:
        return self.phase != "standby" and self.acts_from_s <= self.world.now_s < self.renewed_s + RENEW_DEADLINE_S

    def keep_lease(self) -> None:
        now_s, lease = self.world.now_s, self.lease
        if self.phase == "standby":
            if lease.is_free(now_s):
                lease.holder, lease.renewed_s = self.name, now_s
                self.renewed_s, self.acts_from_s = now_s, now_s + BIND_DEADLINE_S
                self.phase, self.listed, self.listed_pods, self.adoption = "taking", None, None, None
                self.has_begun = False
        elif now_s >= self.renewed_s + RENEW_DEADLINE_S or lease.holder != self.name:
            self.phase = "standby"
        else:
            lease.renewed_s = self.renewed_s = now_s

    # -- a step ----------------------------------------------------------------------------------------------------

    def step(self, random: Random) -> None:
        self.watch(random)
        self.read_unknown()
        if self.may_act():
            if self.phase == "taking":
                self.take_over(random)
            elif self.phase == "leading":
                for _ in range(random.randint(1, 4)):
                    self.decide(random)
            if random.random() < 0.7:
                self.send()

    def take_over(self, random: Random) -> None:
        """The term begins with a list, and the pods are listed when no write of a former leader can take effect any more."""
        if self.listed is None:
            self.listed = self.world.api.listed()
        elif not self.has_begun:
            self.has_begun = True
            self.machine.begin_term(self.listed)
        elif self.machine.is_ready():
            if self.listed_pods is None:
                self.listed_pods = self.list_pods()
                self.listed_at = len(self.world.api.pod_events)
            elif random.random() < 0.8:
                in_flight = {uid: pod for uid, pod in self.pods.items() if uid in self.unknown}
                self.pods = {pod.uid: pod for pod in self.listed_pods} | in_flight
                self.seen_pods = self.listed_at
                self.phase = "leading"
                if isinstance(self.machine, BorrowerSlices):
                    self.machine.settle()

    def list_pods(self) -> list[PodRecord]:
        return self.world.api.running(self.side)

    def send(self) -> None:
        if not self.has_begun:
            return  # the machine knows its last term only
        if isinstance(self.machine, LenderSlices):
            requests = self.machine.next_requests()
        else:
            charged = self.charged_by_node()
            self.machine.touch(uid for uid in ALLOCATABLE if charged.get(uid) != self.sent_with.get(uid))
            self.sent_with = charged
            if self.world.now_s % PARTS_EVERY_S == 0:
                self.machine.return_kept()
            requests = self.machine.next_requests(charged)
        for request in requests:
            if not self.delay_s and self.world.random.random() < self.world.speed:
                self.machine.answered(request, self.world.api.handle(request))
                continue
            self.world.messages.append(Message(self, self.life, request, self.world.now_s + self.delay_s))

    def watch(self, random: Random) -> None:
        events = self.world.api.slice_events
        if self.world.now_s < self.lags_until_s:
            return
        for _ in range(random.choice((0, 0, 1, 1, 2, 9))):
            if self.seen_slices < len(events):
                exists, found = events[self.seen_slices]
                (self.machine.observe if exists else self.machine.removed)(found)
                self.seen_slices += 1
        for _ in range(random.choice((0, 1, 2, 9))):
            if self.seen_pods < len(self.world.api.pod_events):
                change, uid = self.world.api.pod_events[self.seen_pods]
                self.seen_pods += 1
                self.on_pod(change, self.world.api.pods[uid])

    def on_pod(self, change: str, pod: PodRecord) -> None:
        if change == "bound" and pod.side == self.side:
            self.pods[pod.uid] = pod
            self.unknown.pop(pod.uid, None)
        elif change == "gone":
            self.pods.pop(pod.uid, None)

    def read_unknown(self) -> None:
        """Resolves binds that cannot arrive any more by a consistent read."""
        for uid in [uid for uid, deadline_s in self.unknown.items() if self.world.now_s > deadline_s]:
            del self.unknown[uid]
            pod = self.world.api.pods.get(uid)
            if pod is None or pod.is_gone:
                self.pods.pop(uid, None)

    # -- decisions -------------------------------------------------------------------------------------------------

    def charged(self, node: str) -> SliceAmount:
        total = NOTHING
        for pod in self.pods.values():
            if pod.node == node:
                total += amount_of(pod.amount)
        return total

    def charged_by_node(self) -> dict[str, SliceAmount]:
        return {node: amount for node in ALLOCATABLE if (amount := self.charged(node))}

    def decide(self, random: Random) -> None:
        node = random.choice(sorted(ALLOCATABLE))
        if isinstance(self.machine, LenderSlices):
            self.decide_as_lender(self.machine, node, random)
        else:
            self.decide_as_borrower(self.machine, node, random)

    def decide_as_lender(self, machine: LenderSlices, node: str, random: Random) -> None:
        room = amount_of(ALLOCATABLE[node]) - self.charged(node) - machine.reserved(node)
        chosen = random.random()
        if chosen < 0.15:
            if machine.is_ready():
                self.place(node, room, random)
        elif chosen < 0.25:
            wanted = SliceAmount(random.randint(0, 16), random.randint(0, 200), random.randint(0, 9))
            machine.offer(node, node, SliceOffer(wanted), room)
        elif chosen < 0.27:
            machine.withdraw(node)
        elif chosen < 0.31:
            cpu, memory, pods = ALLOCATABLE[node]
            machine.recall(node, SliceAmount(cpu // 2, memory // 2, pods // 2) & machine.held(node), 60)
        elif chosen < 0.7:
            return
        elif self.adoption is None:
            if machine.known() and self.borrower_is_dead():
                sums: dict[str, SliceAmount] = {}
                known = random.choice(machine.known())
                for pod in self.world.api.running(BORROWER):
                    sums[pod.node] = sums.get(pod.node, NOTHING) + amount_of(pod.amount)
                self.adoption = known, sums
        else:
            machine.adopt(*self.adoption)
            self.adoption = None

    def borrower_is_dead(self) -> bool:
        return self.world.now_s >= self.world.leases[BORROWER].renewed_s + DURATION_S + BIND_DEADLINE_S

    def decide_as_borrower(self, machine: BorrowerSlices, node: str, random: Random) -> None:
        chosen = random.random()
        if chosen < 0.6:
            self.place(node, machine.limit(node, self.world.now_s) - self.charged(node), random)
        elif chosen < 0.85:
            machine.want(node, SliceAmount(random.randint(1, 16), random.randint(1, 200), random.randint(1, 9)))
        else:
            machine.want(node, NOTHING)

    def place(self, node: str, room: SliceAmount, random: Random) -> None:
        self.place_pod(node, room, (random.randint(1, 4), random.randint(1, 40), 1))

    def place_pod(self, node: str, room: SliceAmount, amount: Amount) -> None:
        if amount_of(amount).is_within(room):
            pod = PodRecord(f"pod-{self.world.next_uid()}", node, self.side, amount)
            self.pods[pod.uid] = pod
            self.unknown[pod.uid] = self.world.now_s + BIND_DEADLINE_S
            self.world.binds.append(Bind(self, self.life, pod, self.world.now_s + BIND_DEADLINE_S))


class SliceWorld:
    """One story. `run` plays it; `judge.violations` is the verdict."""

    def __init__(
        self,
        seed: int,
        lender: type[LenderSlices] = LenderSlices,
        borrower: type[BorrowerSlices] = BorrowerSlices,
        replica: type[Replica] = Replica,
    ) -> None:
        self.random = Random(seed)
        self.lender, self.borrower = lender, borrower
        self.judge = SliceJudge(ALLOCATABLE)
        self.api = SliceApi(self.judge)
        self.now_s = 0
        self.leases = {LENDER: Lease(), BORROWER: Lease()}
        self.messages: list[Message] = []
        self.binds: list[Bind] = []
        self._uids = 0
        self.weights = {
            "move": self.random.choice((25, 60)),
            "carry": 15,
            "end": self.random.choice((2, 10)),
            "disturb": self.random.choice((0, 1, 2)),
            "edit": self.random.choice((0, 0, 0.5, 2)),
            "step": 40,
        }
        self.speed = self.random.choice((0, 0.6, 0.9))
        """Share of requests that are answered at once."""
        self.tick = self.random.choice((0.15, 0.4))
        self.has_removals = self.random.random() < 0.3
        """A person removes objects together with their finalizer. Only a lender that remembers them can then be safe, so one leads."""
        self.replicas = [replica(self, side, f"{side}-{number}") for side in (LENDER, BORROWER) for number in (1, 2)]
        for standby in self.replicas[1::2]:
            standby.paused_until_s = 10
        if self.has_removals:
            self.replicas[1].paused_until_s = 1 << 30

    def next_uid(self) -> int:
        self._uids += 1
        return self._uids

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.now_s += self.random.random() < self.tick
            self.step()
            if self.judge.violations:
                return

    def step(self) -> None:
        random = self.random
        match random.choices(tuple(self.weights), tuple(self.weights.values()))[0]:
            case "move" if self.messages:
                self.move(random.choice(self.messages))
            case "carry" if self.binds:
                self.carry(random.choice(self.binds))
            case "end":
                self.end_pod()
            case "disturb":
                self.disturb(random.choice(self.replicas))
            case "edit":
                self.edit()
            case _:
                replica = random.choice(self.replicas)
                if replica.paused_until_s <= self.now_s:
                    if random.random() < 0.8:
                        replica.keep_lease()
                    replica.step(random)

    def disturb(self, replica: Replica) -> None:
        """Kills, pauses or partitions a replica, or delays its watches."""
        random = self.random
        is_only_lender = self.has_removals and replica.side == LENDER
        if is_only_lender and replica is not self.replicas[0]:
            return
        match random.choice(("kill", "pause", "lag", "partition", "partition")):
            case "kill" if not is_only_lender:
                replica.start()
            case "lag":
                replica.lags_until_s = self.now_s + random.choice((10, 40, 80))
            case "partition":
                self.partition(replica)
            case _:
                replica.paused_until_s = self.now_s + random.choice((3, 25, 45))

    def partition(self, replica: Replica) -> None:
        """The replica decides and sends; its requests arrive when another one may lead, and it wakes later or not much earlier."""
        if replica.phase == "leading" and replica.may_act():
            for _ in range(8):
                replica.decide(self.random)
            replica.delay_s = self.random.randint(36, 70)
            replica.send()
            replica.delay_s = 0
            replica.paused_until_s = self.now_s + self.random.choice((20, 40, 80))

    def move(self, message: Message) -> None:
        """Lets a request arrive, once or twice, or its sender get the response, or none."""
        chosen = self.random.random()
        if self.now_s < message.arrives_from_s:
            if chosen < 0.6 and message.life >= 0:
                self.answer(message, UNKNOWN)
                message.life = -1
        elif chosen < 0.45:
            reply = self.api.handle(message.request)
            if not message.is_arrived or self.random.random() < 0.5:
                message.reply = reply
            message.is_arrived = True
        elif chosen < 0.93:
            if message.reply is not None:
                self.answer(message, message.reply)
                self.messages.remove(message)
        elif chosen < 0.97:
            self.answer(message, UNKNOWN)
            if self.random.random() < 0.5:
                self.messages.remove(message)
            else:
                message.life = -1  # it may still arrive
        elif message.life < 0:
            self.messages.remove(message)

    def answer(self, message: Message, reply: SliceReply) -> None:
        if message.life == message.sender.life:
            message.sender.machine.answered(message.request, reply)

    def carry(self, bind: Bind) -> None:
        """Lets a bind arrive or get lost; its sender learns the result only from the watch, or by a read after its deadline."""
        self.binds.remove(bind)
        if self.now_s <= bind.deadline_s and self.random.random() < 0.8:
            self.api.bind(bind.pod)

    def end_pod(self) -> None:
        running = [pod for side in (LENDER, BORROWER) for pod in self.api.running(side)]
        if running:
            self.api.end(self.random.choice(running).uid)

    def edit(self) -> None:
        if not self.api.objects:
            return
        random = self.random
        name = random.choice(sorted(self.api.objects))
        stored = self.api.objects[name]
        chosen = random.random()
        if chosen < 0.15:
            self.api.delete(name, by_force=False)
        elif chosen < 0.25:
            self.api.delete(name, by_force=self.has_removals)
        elif chosen < 0.5:
            self.api.edit(name, "status", {**stored["status"], "held": {}})
        elif chosen < 0.75:
            largest = {
                node: dict(zip(("cpuMilli", "memoryBytes", "pods"), all_, strict=True))
                for node, all_ in ALLOCATABLE.items()
            }
            self.api.edit(name, "spec", {**stored["spec"], "offers": largest})
        else:
            half, field = random.choice((("spec", "lenderEpoch"), ("status", "borrowerEpoch")))
            changed: Document = {**stored[half], field: random.randint(0, 9)}
            self.api.edit(name, half, changed)

    # -- the end ---------------------------------------------------------------------------------------------------

    def pass_calmly(self, seconds: int, *replicas: Replica) -> None:
        """Time passes without disturbances: everything arrives that is due, and only these replicas run."""
        random = Random(1)
        for _ in range(seconds):
            self.now_s += 1
            for message in [one for one in self.messages if one.arrives_from_s <= self.now_s]:
                self.messages.remove(message)
                self.answer(message, self.api.handle(message.request))
            for replica in replicas:
                replica.lags_until_s = replica.paused_until_s = 0
                replica.keep_lease()
                replica.watch(random)
                replica.read_unknown()
                if replica.may_act():
                    if replica.phase == "taking":
                        replica.take_over(random)
                    replica.send()
            for bind in list(self.binds):
                self.binds.remove(bind)
                if self.now_s <= bind.deadline_s:
                    self.api.bind(bind.pod)
