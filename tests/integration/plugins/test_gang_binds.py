"""Gangs whose binds fail half-way: who is bound stays, the rest is healed or hears within the gang's timeout that it is not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from multisched.cluster.api.direct import DirectTransport
from multisched.model.wire import Response, Transport
from multisched.plugins.default_preemption import NO_VICTIMS_FOR_ALL
from tests.integration.plugins.gang_kit import PODS, condition, koordinator, members, nodes, notes, waiting
from tests.integration.plugins.program_cluster import HEAD, ProgramCluster, in_virtual_time, open_cluster

G3 = koordinator("g", 3, waiting_time="60s")
NAMES = ("m0", "m1", "m2")


class Doorkeeper:
    """Stands before the API server, and may answer bindings itself."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.ask: Callable[[str], Awaitable[Response | None]] | None = None
        """Hears of each binding by the pod's name before it arrives; None lets it in."""

    async def request(self, method: str, path: str, **rest: Any) -> Response:
        if self.ask is not None and method == "POST" and path.partition("?")[0].endswith("/binding"):
            answer = await self.ask(path.split("/")[-2])
            if answer is not None:
                return answer
        return await self._inner.request(method, path, **rest)

    def stream(self, path: str, **rest: Any) -> Any:
        return self._inner.stream(path, **rest)


def refused(status: int, reason: str, message: str) -> Response:
    document = {"kind": "Status", "status": "Failure", "reason": reason, "message": message, "code": status}
    return Response(status, orjson.dumps(document))


def play(main: Callable[[ProgramCluster, Doorkeeper], Awaitable[None]], *names: str, cpu: str = "4") -> None:
    async def scene() -> None:
        keepers: list[Doorkeeper] = []

        def behind(inner: Transport) -> Doorkeeper:
            keepers.append(Doorkeeper(inner))
            return keepers[0]

        async def before(cluster: ProgramCluster) -> None:
            await nodes(cluster, *names, cpu=cpu)

        async with open_cluster(HEAD, before=before, behind=behind) as cluster:
            await main(cluster, keepers[0])
            await cluster.at_rest()

    in_virtual_time(scene)


async def bind(cluster: ProgramCluster, name: str, node: str) -> None:
    """What another scheduler does."""
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
    answer = await DirectTransport(cluster.server).request("POST", f"{PODS}/{name}/binding", body=orjson.dumps(body))
    assert answer.status == 201, answer.body


def test_member_bound_by_another_scheduler_counts_and_others_stay() -> None:
    async def main(cluster: ProgramCluster, keeper: Doorkeeper) -> None:
        async def ask(name: str) -> None:
            if name == "m1":
                keeper.ask = None
                await bind(cluster, "m1", "b" if cluster.node_of("m0") == "a" else "a")

        keeper.ask = ask
        await members(cluster, G3, *NAMES)
        await cluster.until(lambda: all(cluster.node_of(name) for name in NAMES))
        gang = cluster.program.cache.gangs.gang("default/g")
        assert gang is not None
        await cluster.until(lambda: gang.bound == 3)
        assert (gang.placed_count, gang.needs, len(cluster.worker("forecast").queue)) == (3, 0, 0)

    play(main, "a", "b")


def test_member_with_a_refused_bind_is_retried_and_others_stay() -> None:
    async def main(cluster: ProgramCluster, keeper: Doorkeeper) -> None:
        left = [refused(500, "InternalError", "etcd has no leader") for _ in range(3)]

        async def ask(name: str) -> Response | None:
            return left.pop() if name == "m1" and left else None

        keeper.ask = ask
        await members(cluster, G3, *NAMES)
        await cluster.bound("m0", "m2", within_s=2.0)
        await cluster.bound("m1", within_s=60.0)

    play(main, "a")


def test_unrecoverable_and_bound_members_are_reported() -> None:
    async def main(cluster: ProgramCluster, keeper: Doorkeeper) -> None:
        async def ask(name: str) -> Response | None:
            return refused(403, "Forbidden", "not yours") if name == "m1" else None

        keeper.ask = ask
        await members(cluster, G3, *NAMES)
        await cluster.bound("m0", "m2", within_s=2.0)
        await asyncio.sleep(100.0)
        assert (await condition(cluster, "m1"))[1], "it waits, and knows why"
        below = "gang default/g has been below its minimum for 60 s: 2 of 3 members run"
        assert await notes(cluster, "GangBelowMinimum") == {"m0": [below], "m2": [below]}
        keeper.ask = None
        await cluster.bound("m1", within_s=400.0)

    play(main, "a")


def test_gang_with_a_node_deleted_during_binding_continues_elsewhere() -> None:
    async def main(cluster: ProgramCluster, keeper: Doorkeeper) -> None:
        late = asyncio.Event()

        async def ask(name: str) -> None:
            if name != "m0":
                await late.wait()

        keeper.ask = ask
        await members(cluster, G3, *NAMES, cpu="2")
        await cluster.bound("m0")
        assert cluster.node_of("m0") == "a"
        await cluster.node("b", cpu="4")
        await cluster.delete("nodes/a")
        late.set()
        await cluster.until(lambda: cluster.program.cache.nodes.row_of("a") is None)
        await asyncio.sleep(5.0)
        # The server lets pods be bound to a node that is gone: those that were sent before are its own to collect.
        for name in [name for name in NAMES if cluster.node_of(name) == "a"]:
            await cluster.delete(f"{PODS}/{name}")
            await members(cluster, G3, f"{name}-again", cpu="1")
        await cluster.until(lambda: not len(cluster.worker("forecast").queue))

    play(main, "a", cpu="6")


def test_gang_left_by_a_killed_leader_recovers_together_under_the_next() -> None:
    async def main() -> None:
        async def before(cluster: ProgramCluster) -> None:
            await nodes(cluster, "a", cpu="2")
            await members(cluster, G3, "m0", nodeName="a")
            await members(cluster, G3, "m1", "m2")

        async with open_cluster(HEAD, before=before) as cluster:
            await asyncio.sleep(70.0)
            why = (
                "gang default/g has been below its minimum for 60 s: 1 of the 2 members that must start together fit;"
                f" m2: 0/1 nodes are available: 1 Insufficient cpu. preemption: {NO_VICTIMS_FOR_ALL}"
            )
            assert await condition(cluster, "m1") == ("Unschedulable", why)
            assert not cluster.bound_at, "not one alone"
            await cluster.node("b", cpu="1")
            await cluster.bound("m1", "m2")
            await cluster.at_rest()

    in_virtual_time(main)


def test_killed_leader_leaves_no_partial_gang() -> None:
    """The first program is cancelled while one of three binds has been answered; the second one ends what it began."""

    async def main() -> None:
        async def before(cluster: ProgramCluster) -> None:
            await nodes(cluster, "a", cpu="3")
            await members(cluster, G3, *NAMES)

        gone = asyncio.Event()
        keepers: list[Doorkeeper] = []

        def behind(inner: Transport) -> Doorkeeper:
            async def ask(name: str) -> None:
                if name != "m0":
                    await gone.wait()

            keepers.append(Doorkeeper(inner))
            keepers[0].ask = ask
            return keepers[0]

        async with open_cluster(HEAD, before=before, behind=behind) as first:
            await first.bound("m0")
            assert waiting(first, "m1").startswith("in-flight")
            keepers[0].ask = None
            async with open_cluster(HEAD, server=first.server) as second:
                await second.until(lambda: all(second.node_of(name) for name in NAMES))
            gone.set()
            await first.at_rest()

    in_virtual_time(main)
