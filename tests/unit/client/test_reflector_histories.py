"""A reflector against a server whose store is written, restored from backups, and read in pages that fail: it always catches up."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from multisched.client.reflector import Reflector
from multisched.model.wire import Response
from multisched.testing.sim_loop import SimLoop, simulate
from tests.unit.client.scripted import (
    Asked,
    LoopClock,
    Mirror,
    ScriptedTransport,
    a_list,
    a_refusal,
    an_object,
)

NAMES = "abcdef"
PAGE_ITEMS = 2


@dataclass
class Server:
    """Objects by name, with their versions and uids, under one counter that a restore turns back."""

    rng: random.Random
    version: int = 10
    objects: dict[str, tuple[int, str]] = field(default_factory=dict)
    uids: int = 0
    backups: list[tuple[int, dict[str, tuple[int, str]]]] = field(default_factory=list)
    is_faulty: bool = True

    def do(self, what: str, name: str) -> None:
        match what:
            case "write":
                self.version += 1
                if name not in self.objects:
                    self.uids += 1
                self.objects[name] = (self.version, self.objects.get(name, (0, f"uid-{self.uids}"))[1])
            case "delete" if name in self.objects:
                self.version += 1
                del self.objects[name]
            case "back up":
                self.backups.append((self.version, dict(self.objects)))
            case "restore" if self.backups:
                self.version, objects = self.backups[-1]
                self.objects = dict(objects)

    def respond(self, asked: Asked) -> Response:
        """A page of the present; tokens of another version have expired."""
        if self.is_faulty and self.rng.random() < 0.2:
            return a_refusal(self.rng.choice((500, 504, 429)))
        version, _, start = asked.query.get("continue", f"{self.version}:0").partition(":")
        if int(version) != self.version:
            return a_refusal(410, "Expired")
        first, many = int(start), int(asked.query.get("limit", 100))
        names = sorted(self.objects)
        page = [an_object(n, self.objects[n][0], uid=self.objects[n][1]) for n in names[first : first + many]]
        token = f"{version}:{first + many}" if first + many < len(names) else ""
        return a_list(version, *page, continue_token=token)


_steps = st.lists(
    st.tuples(st.sampled_from(["write", "write", "write", "delete", "back up", "restore"]), st.sampled_from(NAMES)),
    min_size=1,
    max_size=40,
)


@given(_steps, st.integers(0, 2**16))
def test_reflector_reaches_the_current_state_after_any_history(steps: list[tuple[str, str]], seed: int) -> None:
    rng = random.Random(seed)
    server, mirror = Server(rng), Mirror()
    transport = ScriptedTransport(respond=server.respond, latency_s=0.1)
    expired = [a_refusal(410, "Expired")] * 10_000

    async def main() -> None:
        transport.watches.extend(expired)
        reflector = Reflector(
            transport, "/api/v1/pods", handler=mirror, clock=LoopClock(), rng=rng, page_items=PAGE_ITEMS
        )
        with suppress(TimeoutError):
            async with asyncio.timeout(3_600), asyncio.TaskGroup() as tasks:
                tasks.create_task(reflector.run())
                for what, name in steps:
                    server.do(what, name)
                    await asyncio.sleep(rng.choice((0.0, 0.5, 20.0)))
                server.is_faulty = False
                await asyncio.sleep(3_000)

    simulate(main(), SimLoop(seed))
    assert mirror.objects == {f"default/{name}": str(version) for name, (version, _) in server.objects.items()}
