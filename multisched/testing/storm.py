"""What happens to a simulated cluster while its pods arrive: disruptions of every kind, in an order drawn from the seed.

`struck` counts what really happened; a disruption that found nothing to disrupt does not count.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from multisched.model.objects import CPU, Pod
from multisched.testing.budgets import FREE, PROTECTED
from multisched.testing.faults import FOREIGN
from multisched.testing.plugins import HELD
from multisched.testing.policies import OWNER
from multisched.testing.relations import HOSTNAME
from multisched.testing.world import NODES, PAIRS, PODS

if TYPE_CHECKING:
    from multisched.testing.scenario import Process, Run

STORM_S = 30.0
"""Virtual seconds in which pods arrive and faults strike; what strikes last may go on for longer."""

CALM_S = 3.0
"""Before the last pod, about which nothing happens but one event while Permit holds it."""
HEARD_S = 0.3
COME_BACK_S = 8.0
"""Within this it is back: held for 2 s, then backing off for 1 s."""

SET_ASIDE_MAX_S = 60.0
"""A new leader may have to come first, and then five attempts with their backoffs (1, 2, 4 and 8 s)."""

LIGHT = 24
"""Disruptions of a run that leave the leader alone."""
HEAVY = 2
"""Those that make it lose its lease, give it back, or come back late."""

STALL_S = 4.0
"""How late watches are when a leader stops."""
LATE_S = 24.0
"""How late a standby's watch of pods is when a leader is killed: for longer than the lease and the last binds last."""
HIDDEN = 8
"""Pods of 500m that fill the node that is added for them."""
FILLED_S = 6.0
PAIR_FILL, PAIR_URGENT = ("900m",) * 8, ("1", "1", "1500m")
"""CPU of the pods that fill two nodes, half of them under a budget, and of the urgent ones that then want to go there."""
PRESSED_S = 2.0
RESTART_MAX_S = 25.0
"""How long the container of a killed process may take to come back: long enough for another process to lead meanwhile."""

UNHEARD = 0.25
"""Of all runs: in these the audit must find a deletion that no watch told of, which takes up to two of its periods."""

BURSTS = (1, 1, 5, 20, 40)
DELETABLE_NODES = NODES // 4


class Storm:
    """One run's arrivals and disruptions."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._world = run.world
        self._rng = run.rng
        self.struck: Counter[str] = Counter()
        self._nodes_added = 0
        self._light: dict[str, Callable[[], Awaitable[bool]]] = {
            "watches dropped": self._drop_watches,
            "history compacted": self._compact,
            "watches expired": self._expire,
            "pod deleted": self._delete_pod,
            "pod recreated": self._recreate_pod,
            "pod deleted unseen": self._delete_unseen,
            "pod deleted while decided": self._delete_while_decided,
            "pod resized": self._resize,
            "infeasible pod shrunk": self._shrink_infeasible,
            "gate opened": self._open_gate,
            "refused pod mended": self._heed_policy,
            "foreign binds": self._bind_from_outside,
            "crowd for one node": self._crowd,
            "protected pods pressed": self._press_protected,
            "node deleted": self._delete_node,
            "node replaced": self._replace_node,
            "node cordoned": self._cordon,
            "loan withdrawn": self._withdraw_loan,
            "server away": self._go_away,
        }
        self._heavy: dict[str, Callable[[], Awaitable[bool]]] = {
            "leader killed": self._kill_leader,
            "leader stopped": self._stop_leader,
            "leader paused": self._pause_leader,
            "leases unreachable": self._lose_leases,
        }

    async def run(self) -> None:
        """Every light kind once and some twice, and two heavy ones; returns when the last is over."""
        light = list(self._light)
        kinds = light + [self._rng.choice(light) for _ in range(LIGHT - len(light))]
        kinds += self._rng.sample(list(self._heavy), HEAVY)
        self._rng.shuffle(kinds)
        tasks = [asyncio.ensure_future(self._arrive())]
        for kind in kinds:
            await asyncio.sleep(self._rng.uniform(0.1, 2 * STORM_S / len(kinds)))
            tasks.append(asyncio.ensure_future(self._strike(kind)))
        try:
            await asyncio.gather(*tasks)
            if self._rng.random() < UNHEARD:  # at the end, where no other list comes to help
                self.struck["pod deleted unheard"] += await self._delete_unheard()
            await self._set_aside()
            await self._tell_while_held()
            await self._mend_refused()
        finally:
            for task in tasks:
                task.cancel()

    async def _strike(self, kind: str) -> None:
        act = self._light.get(kind) or self._heavy[kind]
        self.struck[kind] += await act()

    async def _arrive(self) -> None:
        left = PODS
        while left:
            burst = min(left, self._rng.choice(BURSTS))
            left -= burst
            for _ in range(burst):
                await self._world.add_pod()
            await asyncio.sleep(self._rng.uniform(0.0, STORM_S / 12))

    # -- the wire and the server -----------------------------------------------------------------------------------

    async def _drop_watches(self) -> bool:
        return bool(self._run.server.drop_watches())

    async def _compact(self) -> bool:
        self._run.server.compact()
        return bool(self._run.server.drop_watches())

    async def _expire(self) -> bool:
        return bool(self._run.server.expire_watches())

    async def _go_away(self) -> bool:
        self._run.server.set_unavailable()
        await asyncio.sleep(self._rng.uniform(0.5, 3.0))
        self._run.server.set_available()
        return True

    # -- pods ------------------------------------------------------------------------------------------------------

    def _any(self, wanted: Callable[[Pod], bool] = lambda pod: True) -> Pod | None:
        found = [pod for pod in self._world.pods() if wanted(pod)]
        return self._rng.choice(found) if found else None

    async def _delete_pod(self) -> bool:
        pod = self._any()
        if pod is not None:
            await self._world.delete_pod(pod.name)
        return pod is not None

    async def _recreate_pod(self) -> bool:
        pod = self._any()
        if pod is not None:
            await self._world.delete_pod(pod.name)
            await self._world.add_pod(pod.name)
        return pod is not None

    async def _delete_unseen(self) -> bool:
        """While no watch is open, and gone from history before one is."""
        pod = self._any()
        if pod is not None:
            self._run.server.drop_watches()
            await self._world.delete_pod(pod.name)
            self._run.server.compact()
        return pod is not None

    async def _delete_unheard(self) -> bool:
        """Every open watch loses its deletion without a word: only the audit can find out."""
        pod = self._any(lambda pod: bool(pod.node) and not pod.name.startswith(FOREIGN))
        if pod is None:
            return False
        self._run.faults.unheard.add(pod.name)
        await self._world.delete_pod(pod.name)
        await asyncio.sleep(1.0)
        self._run.faults.unheard.discard(pod.name)
        return True

    async def _delete_while_decided(self) -> bool:
        """Pods of a burst go while their cycles wait for an answer, or their binds are on the way."""
        names = [f"brief-{self._rng.getrandbits(32):08x}" for _ in range(6)]
        for name in names:
            await self._world.add_pod(name, scheduler="forecast-scheduler")
        for name in names:
            await asyncio.sleep(self._rng.uniform(0.0, 0.008))
            await self._world.delete_pod(name)
        return True

    async def _resize(self) -> bool:
        """A bound pod takes less than before: its room must come free, and nothing more."""
        pod = self._any(lambda pod: bool(pod.node) and 100 < pod.requests.get(CPU, 0) <= 500)
        return pod is not None and await self._world.resize(pod, f"{pod.requests[CPU] // 2}m")

    async def _shrink_infeasible(self) -> bool:
        """The only event that helps this pod is its own update."""
        pod = self._any(lambda pod: not pod.node and pod.requests.get(CPU, 0) > 100_000)
        return pod is not None and await self._world.resize(pod, "100m")

    async def _open_gate(self) -> bool:
        pod = self._any(lambda pod: bool(pod.gates))
        return pod is not None and await self._world.open_gates(pod)

    async def _heed_policy(self) -> bool:
        """One of those that the API server refuses, at whatever stage it is."""
        pod = self._any(lambda pod: self._run.door.policies.policy_of(pod.name) == OWNER)
        return pod is not None and await self._world.heed_policy(pod)

    async def _mend_refused(self) -> None:
        """Once what the API server refuses is set aside, so that only the event that mends it can bring it back (I3)."""
        await self._set_aside()
        for pod in self._world.pods():
            if self._run.door.policies.policy_of(pod.name) == OWNER:
                self.struck["refused pod mended"] += await self._world.heed_policy(pod)
        await self._world.trust_namespace()
        self.struck["namespace trusted"] += 1

    async def _set_aside(self) -> None:
        """Waits until what the API server refuses is set aside: until then each attempt gives back room, which is news."""
        self._run.faults.is_on = False
        until_s = self._run.loop.time() + SET_ASIDE_MAX_S
        while self._run.loop.time() < until_s and self._run.not_set_aside():  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(2.0)

    async def _bind_from_outside(self) -> bool:
        await asyncio.gather(*(self._world.bind_from_outside() for _ in range(3)))
        return True

    async def _crowd(self) -> bool:
        """More pods than fit want one node, all at once: some have no other candidate."""
        node = f"node-{NODES - 10 + self._rng.randrange(6)}"
        for _ in range(12):
            await self._world.add_pod(scheduler="forecast-scheduler", node=node)
        return True

    async def _press_protected(self) -> bool:
        """Urgent pods want two nodes that are full, in part of pods under budgets."""
        await self._press(await self._fill_pair())
        return True

    async def _fill_pair(self) -> str:
        pair = self._rng.choice(PAIRS)
        apps = [*PROTECTED * 2, *FREE * 2]
        self._rng.shuffle(apps)
        names = [
            await self._world.add_to_pair(pair, cpu, app, is_urgent=False)
            for cpu, app in zip(PAIR_FILL, apps, strict=True)
        ]
        await self._until(lambda: all(pod.node for pod in self._world.pods() if pod.name in names))
        return pair

    async def _press(self, pair: str) -> None:
        for cpu in PAIR_URGENT:
            await self._world.add_to_pair(pair, cpu, self._rng.choice(FREE), is_urgent=True)

    # -- nodes -----------------------------------------------------------------------------------------------------

    async def _delete_node(self) -> bool:
        await self._world.delete_node(self._rng.randrange(DELETABLE_NODES))
        return True

    async def _replace_node(self) -> bool:
        number = self._rng.randrange(DELETABLE_NODES)
        await self._world.delete_node(number)
        await asyncio.sleep(self._rng.uniform(0.0, 1.0))
        await self._world.add_node(number)
        return True

    async def _cordon(self) -> bool:
        """The node everybody wants, while a burst is being decided."""
        name = f"node-{DELETABLE_NODES}"
        for _ in range(8):
            await self._world.add_pod(scheduler="forecast-scheduler")
        await asyncio.sleep(self._rng.uniform(0.0, 0.008))
        if not await self._world.patch_node(name, {"spec": {"unschedulable": True}}):
            return False
        await asyncio.sleep(self._rng.uniform(1.0, 8.0))
        await self._world.patch_node(name, {"spec": {"unschedulable": None}})
        return True

    async def _withdraw_loan(self) -> bool:
        """All nodes that are lent are wanted back while a burst of borrowers is being decided."""
        for _ in range(8):
            await self._world.add_pod(scheduler="job-scheduler")
        await asyncio.sleep(self._rng.uniform(0.0, 0.008))
        lent = [node.name for node in self._run.door.nodes().values() if node.labels.get("lend") == "yes"]
        for name in lent:
            self._run.door.loan_ended("job", name)
            await self._world.patch_node(name, {"metadata": {"labels": {"lend": "no"}}})
        await asyncio.sleep(self._rng.uniform(1.0, 8.0))
        for name in lent:
            await self._world.patch_node(name, {"metadata": {"labels": {"lend": "yes"}}})
        return bool(lent)

    # -- processes -------------------------------------------------------------------------------------------------

    async def _tell_while_held(self) -> None:
        """A pod is held at Permit while room comes free elsewhere, and nothing happens after that: the event of its attempt
        must bring it back (I3)."""
        run, name = self._run, f"{HELD}last"
        run.faults.is_on = False
        await asyncio.sleep(CALM_S)
        leaders = [p for p in run.processes if p.program.router.workers()[0].is_leading]
        await self._world.add_pod(name, scheduler="forecast-scheduler")
        await asyncio.sleep(1.0)
        held = next((pod.uid for pod in run.door.pods().values() if pod.name == name), "")
        leaders = [p for p in leaders if p.program.cache.is_assumed(held)]
        freed = self._any(lambda pod: bool(pod.node))
        if freed is None or not leaders:
            return
        await self._world.delete_pod(freed.name)
        await asyncio.sleep(HEARD_S)
        has_heard = all(p.program.cache.placed(freed.uid) is None for p in leaders)
        await asyncio.sleep(COME_BACK_S)
        is_undisturbed = has_heard and all(p in run.processes for p in leaders)
        if is_undisturbed and any(pod.name == name for pod in run.door.unbound_feasible()):
            run.door.complain(f"I3: {name} missed the event of its attempt")

    async def _burst(self, stalled: Sequence[Process] = ()) -> None:
        """A burst that everybody hears of; what becomes of it the stalled ones hear late."""
        for _ in range(24):
            await self._world.add_pod(scheduler=self._rng.choice(["forecast-scheduler", "job-scheduler"]))
        for process in stalled:
            process.transport.stalled_until_s = self._run.loop.time() + STALL_S
        await asyncio.sleep(self._rng.uniform(0.005, 0.03))

    async def _fill_behind(self, standbys: Sequence[Process], late_s: float) -> str:
        """A cordoned node is filled while the standbys' watches of pods fall behind; pods that they know wait for it.

        To them it is empty. Whoever leads next has to list before its first decision. Returns the node, still cordoned.
        """
        number = NODES + self._nodes_added
        name = f"node-{number}"
        self._nodes_added += 1
        await self._world.add_node(number, is_cordoned=True)
        for _ in range(HIDDEN):
            await self._world.add_pod(scheduler="forecast-scheduler", node=name)
        await self._until(lambda: all(self._knows(process, name) for process in self._run.processes))
        for process in standbys:
            process.transport.pods_late_until_s = self._run.loop.time() + late_s
        for _ in range(HIDDEN):
            await self._world.add_pod(scheduler="forecast-scheduler", node=name, heeds_cordons=False)
        await self._until(lambda: sum(pod.node == name for pod in self._world.pods()) >= HIDDEN - 1)
        return name

    async def _until(self, holds: Callable[[], bool]) -> None:
        """Or until FILLED_S have passed: faults may be in the way."""
        until_s = self._run.loop.time() + FILLED_S
        while self._run.loop.time() < until_s and not holds():  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.1)

    def _knows(self, process: Process, node: str) -> bool:
        """The node, and the pods that wait for it."""
        pods = [pod for pod in self._world.pods() if _wants(pod, node)]
        has_pods = all(pod.uid in process.program.pods.pending for pod in pods if not pod.node)
        return has_pods and process.program.cache.nodes.row_of(node) is not None

    def _others(self, process: Process) -> list[Process]:
        return [other for other in self._run.processes if other is not process]

    async def _kill_leader(self) -> bool:
        async def kill(process: Process) -> None:
            """With binds on the wire, and others that have not heard of the last ones."""
            name = await self._fill_behind(self._others(process), LATE_S)
            await self._run.kill(process)
            await self._world.patch_node(name, {"spec": {"unschedulable": None}})
            await asyncio.sleep(self._rng.uniform(0.0, RESTART_MAX_S))
            self._run.start()

        return await self._disturb(kill)

    async def _stop_leader(self) -> bool:
        async def stop(process: Process) -> None:
            """In a burst, of which the others hear late: the successor of a lease given back does not wait."""
            name = await self._fill_behind(self._others(process), 2 * STALL_S)
            await self._burst(stalled=self._others(process))
            await self._run.stop(process)
            await self._world.patch_node(name, {"spec": {"unschedulable": None}})
            await asyncio.sleep(self._rng.uniform(0.0, STALL_S))  # before its container is there again
            self._run.start()

        return await self._disturb(stop)

    async def _pause_leader(self) -> bool:
        async def pause(process: Process) -> None:
            pair = await self._fill_pair()
            await self._burst()
            await self._press(pair)
            await self._at_work(process)
            await self._run.pause(process, self._rng.uniform(3.0, 25.0))

        return await self._disturb(pause)

    async def _at_work(self, process: Process) -> None:
        """Until victims are being asked to go, or PRESSED_S have passed."""
        until_s = self._run.loop.time() + PRESSED_S
        while self._run.loop.time() < until_s and not len(process.program.preemptor):  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.003)

    async def _lose_leases(self) -> bool:
        """The elector alone is cut off, for longer than a lease lasts; watches and binds go on."""

        async def cut_off(process: Process) -> None:
            process.transport.loses_leases = True
            await asyncio.sleep(self._rng.uniform(8.0, 18.0))
            process.transport.loses_leases = False

        return await self._disturb(cut_off)

    async def _disturb(self, act: Callable[[Process], Awaitable[None]]) -> bool:
        """One disruption at a time has its hands on a process."""
        process = self._run.leader()
        if process is None:
            return False
        self._run.disturbed.add(process.identity)
        await act(process)
        self._run.disturbed.discard(process.identity)
        return True


def _wants(pod: Pod, node: str) -> bool:
    """The pod names this one node."""
    return any(rule.key == HOSTNAME and rule.matches_value(node) for rule in pod.spec.affinity.node_selector)
