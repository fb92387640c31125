"""A lender and two borrowers of quota room over an API that delays, loses and repeats writes: one random story per seed.

Each process has a ledger, the room and the sides of the program. `over` has each level that was ever over its max by the pods that the
API server shows on nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Coroutine
from functools import partial
from random import Random
from typing import Any, Final

import msgspec

from multisched.framework.context import NoNominations
from multisched.framework.slice_writes import SliceAnswer, SliceReply, SliceRequest
from multisched.model.cluster_objects import SliceSet
from multisched.model.objects import Pod
from multisched.model.quota_tree import QuotaTree
from multisched.plugins.quota.quota_ledger import QuotaLedger
from multisched.plugins.quota.shared.borrowing import RoomBorrowing
from multisched.plugins.quota.shared.lending import Demand, RoomLending
from multisched.plugins.quota.shared.room import QuotaRoom
from multisched.plugins.quota.shared.terms import QuotaSharing
from multisched.testing.builders import make_pod
from tests.unit.plugins.loans.slices.slice_api import SliceApi
from tests.unit.plugins.loans.slices.slice_judge import SliceJudge
from tests.unit.plugins.quota.trees import node, tree_of

NAMESPACE: Final = "multisched-system"
LENDER, BORROWERS = "web", ("batch", "etl")
SHARING: Final = QuotaSharing(LENDER, {name: frozenset({f"{name}-scheduler"}) for name in BORROWERS})
GPU: Final = "nvidia.com/gpu"
LEAVES: Final = ("a", "b", "c")


def random_tree(random: Random) -> QuotaTree:
    """Returns root -> x -> a, b and root -> c, with limits of some resources, and guarantees of some leaves."""

    def level(name: str, *children: Any) -> Any:
        least, most = {}, {}
        if random.random() < 0.8:
            most["cpu"] = random.randint(2, 8)
        if random.random() < 0.5:
            most[GPU] = random.randint(0, 3)
        if not children and "cpu" in most and random.random() < 0.5:
            least["cpu"] = random.randint(0, 2)
        attributes = {"multisched.io/guarantee": "all"} if least and random.random() < 0.5 else {}
        more: Any = {"attributes": attributes} if attributes else {}
        return node(name, least, most, *children, **more, **({} if children else {"namespaces": [name]}))

    total = {"cpu": 9, GPU: 3}
    x = level("x", level("a"), level("b"))
    for one in (x, *x["children"]):
        one["max"] = {name: min(amount, x["max"].get(name, amount), total[name]) for name, amount in one["max"].items()}
    x["min"] = {"cpu": sum(one["min"].get("cpu", 0) for one in x["children"])}
    x["max"]["cpu"] = max(x["max"].get("cpu", 9), x["min"]["cpu"])
    return tree_of(total, total, x, level("c"))


class Bind(msgspec.Struct, eq=False):
    sender: Process
    pod: Pod


class Message(msgspec.Struct, eq=False):
    """A request in the network."""

    sender: Process
    side: RoomLending | RoomBorrowing
    request: SliceRequest
    reply: SliceReply | None = None


class Process:
    """The process that leads one domain."""

    def __init__(self, world: RoomWorld, domain: str) -> None:
        self.world = world
        self.domain = domain
        self.ledger = QuotaLedger(None, tuple)
        self.ledger._put_in_force(world.tree)
        self.room = QuotaRoom(self.ledger, SHARING)
        self.room.is_live = True
        self.sides: list[RoomLending | RoomBorrowing] = []
        if domain == LENDER:
            demand = Demand(self.room, self.world.pending.values)
            self.sides += [RoomLending(self.room, name, demand, NoNominations()) for name in BORROWERS]
        else:
            self.sides.append(RoomBorrowing(self.room, domain))
        self.seen_slices = len(world.api.slice_events)
        self.seen_pods = 0
        self.waiting: dict[str, Pod] = {}
        self.is_leading = False
        for side in self.sides:
            side.begin_term(world.api.listed(), NAMESPACE)

    # -- leading ---------------------------------------------------------------------------------------------------

    def step(self, random: Random) -> None:
        self.watch(random)
        if not self.is_leading:
            self.take_over()
        else:
            random.choice((self.place, self.place, self.decide, self.allow))(random)
        if random.random() < 0.6:
            self.send()

    def take_over(self) -> None:
        """Counts the pods once no write of a former leader can take effect any more."""
        if all(side.machine is not None and side.machine.is_ready() for side in self.sides):
            self.seen_pods = len(self.world.pod_events)
            for pod in self.world.bound.values():
                self.ledger.restore(pod)
            for side in self.sides:
                if isinstance(side, RoomBorrowing):
                    side.settle()
                    side.refresh()
            self.is_leading = True

    def place(self, random: Random) -> None:
        mine = [pod for pod in self.world.pending.values() if pod.spec.scheduler_name == f"{self.domain}-scheduler"]
        mine = [pod for pod in mine if not self.ledger.holds(pod.uid)]
        if not mine:
            return
        pod = random.choice(mine)
        if self.ledger.fits(pod):
            if self.domain == LENDER:
                levels = self.ledger.levels_of(pod)
                self.room.needs.add(pod.uid, levels, self.ledger.amounts.items(pod))
            return
        self.ledger.take(pod)
        if self.room.waiting_at(pod.uid) is None:
            self.bind(pod)
        else:
            self.waiting[pod.uid] = pod

    def allow(self, random: Random) -> None:
        """Looks at a pod at Permit: it is bound if enough is claimed, and else it may be refused."""
        if not self.waiting:
            return
        pod = random.choice(list(self.waiting.values()))
        key = self.room.waiting_at(pod.uid)
        (side,) = self.sides
        assert isinstance(side, RoomBorrowing)
        if key is not None and side.may_use(key[1], self.room.waiting[key][pod.uid], 0.0):
            side.claim(pod.uid)
            del self.waiting[pod.uid]
            self.bind(pod)
        elif random.random() < 0.1:
            del self.waiting[pod.uid]
            self.forget(pod)

    def bind(self, pod: Pod) -> None:
        self.world.binds.append(Bind(self, pod))

    def forget(self, pod: Pod) -> None:
        self.ledger.release(pod.uid)
        self.room.forget_claim(pod.uid)

    def decide(self, random: Random) -> None:
        for side in self.sides:
            if isinstance(side, RoomLending):
                finish(side.offer(self.world.now_s, lambda: True, raises=True))
            elif random.random() < 0.7:
                finish(side.want())
            else:
                finish(side.release(self.world.now_s))

    def send(self) -> None:
        for side in self.sides:
            self.world.messages += [Message(self, side, request) for request in side.next_requests(99)]

    def watch(self, random: Random) -> None:
        events = self.world.api.slice_events
        for _ in range(random.choice((0, 0, 1, 3))):
            if self.seen_slices < len(events):
                exists, found = events[self.seen_slices]
                self.seen_slices += 1
                for side in self.sides:
                    change(side, found.name, partial(observed, found, exists=exists))
        for _ in range(random.choice((0, 0, 1, 5)) if self.is_leading else 0):
            if self.seen_pods < len(self.world.pod_events):
                exists, pod = self.world.pod_events[self.seen_pods]
                self.seen_pods += 1
                if exists:
                    self.ledger.restore(pod)
                else:
                    self.ledger.release(pod.uid)


def change(side: RoomLending | RoomBorrowing, name: str, one: Any) -> None:
    side.change(name, one)


def finish(work: Coroutine[Any, Any, None]) -> None:
    """Runs what only pauses for other tasks."""
    try:
        while True:
            work.send(None)
    except StopIteration:
        return


class RoomWorld:
    """One story."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.tree = random_tree(self.random)
        self.api = SliceApi(SliceJudge({}))
        self.now_s = 0.0
        self.messages: list[Message] = []
        self.binds: list[Bind] = []
        self.pending: dict[str, Pod] = {}
        self.bound: dict[str, Pod] = {}
        self.pod_events: list[tuple[bool, Pod]] = []
        self.used: Counter[tuple[str, str]] = Counter()
        self.over: list[str] = []
        self.count = 0
        self.bound_of: Counter[str] = Counter()
        self.fails = self.random.choice((0, 0, 1))
        self.processes = [Process(self, name) for name in (LENDER, *BORROWERS)]
        self._judge = QuotaLedger(None, tuple)
        self._judge._put_in_force(self.tree)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.now_s += self.random.choice((0.0, 0.2, 2.0))
            self.step()
            if self.over:
                return

    def step(self) -> None:
        random = self.random
        match random.choices(("step", "move", "carry", "come", "end", "fail"), (40, 40, 15, 8, 5, self.fails))[0]:
            case "move" if self.messages:
                self.move(random.choice(self.messages))
            case "carry" if self.binds:
                self.carry(random.choice(self.binds))
            case "come":
                self.come()
            case "end" if self.bound:
                self.end(random.choice(list(self.bound.values())))
            case "fail":
                self.fail(random.randrange(len(self.processes)))
            case _:
                random.choice(self.processes).step(random)

    def come(self) -> None:
        random = self.random
        self.count += 1
        domain, leaf = random.choice((LENDER, *BORROWERS)), random.choice(LEAVES)
        made = make_pod(
            f"p{self.count}",
            namespace=leaf,
            uid=f"p{self.count}",
            cpu_milli=1000 * random.randint(1, 2),
            extra={GPU: 1} if random.random() < 0.3 else {},
            scheduler=f"{domain}-scheduler",
        )
        self.pending[made.uid] = made
        for process in self.processes:
            process.room.demand_version += 1

    def move(self, message: Message) -> None:
        """Lets a request arrive, once or twice, or its sender get the response, or none."""
        chosen = self.random.random()
        if chosen < 0.5:
            reply = self.api.handle(message.request)
            if message.reply is None:
                message.reply = reply
        elif message.reply is not None or chosen < 0.55:
            self.messages.remove(message)
            if message.sender in self.processes:
                reply = message.reply or SliceReply(SliceAnswer.UNKNOWN)
                change(message.side, message.request.name, partial(answered, message.request, reply))

    def carry(self, bind: Bind) -> None:
        """Lets a bind arrive or get lost."""
        self.binds.remove(bind)
        if bind.pod.uid in self.pending and self.random.random() < 0.85:
            pod = msgspec.structs.replace(self.pending.pop(bind.pod.uid), node="n")
            self.bound[pod.uid] = pod
            self.pod_events.append((True, pod))
            self.bound_of[bind.sender.domain] += 1
            self._judge.restore(pod)
            for level in self._judge.levels_of(pod):
                self.over += [
                    f"{level.path}: {level.used[name]} of {most} {name}"
                    for name, most in level.max.items()
                    if level.used.get(name, 0) > most
                ]
        else:
            bind.sender.forget(bind.pod)

    def end(self, pod: Pod) -> None:
        del self.bound[pod.uid]
        self.pod_events.append((False, pod))
        self._judge.release(pod.uid)

    def fail(self, number: int) -> None:
        """Kills a process; the next leader begins after the binds in flight have ended. Its writes may arrive later."""
        for bind in [one for one in self.binds if one.sender is self.processes[number]]:
            self.carry(bind)
        self.processes[number] = Process(self, self.processes[number].domain)


def observed(found: SliceSet, machine: Any, *, exists: bool) -> bool:
    return bool((machine.observe if exists else machine.removed)(found))


def answered(request: SliceRequest, reply: SliceReply, machine: Any) -> bool:
    machine.answered(request, reply)
    return True
