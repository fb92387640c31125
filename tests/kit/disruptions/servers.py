"""Disruptions of API servers: broken watches, compacted history, old lists, false responses, restored backups."""

from __future__ import annotations

import asyncio

from multisched.model.wire import MERGE_PATCH
from tests.kit.disruptions.run_context import Disruption, RunContext
from tests.kit.world.backup import restore_backup
from tests.kit.world.nodes import CROWDED

UNWRITABLE = (
    (("POST", "/events"), ("PATCH", "/events/")),
    (("DELETE", "/pods/"),),
    (("POST", "/eviction"),),
    (("PUT", "/configmaps"), ("POST", "/configmaps")),
)
"""Writes that a role may lose for a while: method and part of the path. Every writer must handle that."""
FALSE_SHARE = 0.3
"""Share of binds that a proxy answers in place of the server."""


async def _drop_watches(context: RunContext) -> bool:
    return bool(context.server.drop_watches())


async def _compact(context: RunContext) -> bool:
    context.server.compact()
    return bool(context.server.drop_watches())


async def _expire(context: RunContext) -> bool:
    return bool(context.server.expire_watches())


async def _expire_pages(context: RunContext) -> bool:
    """Makes all clients list again, and compacts history between the pages, until they request one page."""
    context.server.expire_watches()
    for _ in range(8):
        await context.pause(0.01, 0.06)
        context.server.compact()
    return True


async def _go_away(context: RunContext) -> bool:
    context.server.set_unavailable()
    await context.pause(0.5, 3.0)
    context.server.set_available()
    return True


async def _lag(context: RunContext) -> bool:
    """Breaks watches; the server that answers next is behind, so that its lists are older than what was observed."""
    faults = context.faults
    faults.older_by = context.rng.randint(20, 120)
    context.server.expire_watches()
    for process in context.replicas.running:
        process.transport.stalled_until_s = context.now_s() + 2.0
    await context.pause(1.0, 3.0)
    faults.older_by = 0
    return True


async def _time_out(context: RunContext) -> bool:
    """Answers half of all writes with 504 for some seconds, applied or not."""
    faults = context.faults
    before = faults.timed_out
    faults.timed_out = 0.5
    await context.world.crowds.add(f"node-{context.rng.choice(CROWDED)}", 8, is_mixed=True)
    await context.pause(1.0, 3.0)
    faults.timed_out = before
    return True


async def _forbid_writes(context: RunContext) -> bool:
    """Forbids some writes for a while, during which urgent pods need the room of others."""
    faults = context.faults
    for lost in context.rng.sample(UNWRITABLE, 2):
        faults.forbidden_writes.update(lost)
    node = f"node-{context.rng.choice(CROWDED)}"
    await context.world.crowds.add(node, 8)
    await context.pause(0.5, 1.5)
    for _ in range(2):
        await context.world.add_small_pod(node, {}, is_urgent=True, scheduler="forecast-scheduler", cpu="1")
    await context.pause(3.0, 6.0)
    faults.forbidden_writes.clear()
    return True


async def _lose_answers(context: RunContext) -> bool:
    """Loses responses to binds, applied or not; then refuses or rejects the following requests."""
    faults = context.faults
    before = faults.bind_lost_after, faults.bind_late, faults.refused, faults.bind_rejected
    faults.bind_lost_after, faults.bind_late = 0.4, 0.4
    await context.world.crowds.add(f"node-{context.rng.choice(CROWDED)}", 8, is_mixed=True)
    await context.pause(0.5, 5.5)
    faults.bind_lost_after, faults.bind_late = before[:2]
    faults.refused, faults.bind_rejected = context.rng.choice(((0.85, 0.0), (0.3, 0.6)))
    await context.pause(3.0, 5.0)
    faults.refused, faults.bind_rejected = before[2:]
    return True


async def _say_created(context: RunContext) -> bool:
    """Answers binds with 201 that are not sent to the server."""
    before, context.faults.bind_faked = context.faults.bind_faked, FALSE_SHARE
    await context.world.crowds.add(f"node-{context.rng.choice(CROWDED)}", 6, is_mixed=True)
    await context.pause(0.5, 1.5)
    context.faults.bind_faked = before
    return True


async def _say_missing(context: RunContext) -> bool:
    """Does the same with 404."""
    context.faults.bind_missing = FALSE_SHARE
    await context.world.crowds.add(f"node-{context.rng.choice(CROWDED)}", 6, is_mixed=True)
    await context.pause(0.5, 1.5)
    context.faults.bind_missing = 0.0
    return True


async def _fail_leases(context: RunContext) -> bool:
    """Fails half of all lease requests for longer than a leader can wait: a leader may lose or release its lease."""
    context.faults.lease_failed = 0.5
    await context.world.crowds.fill(2)
    await context.pause(4.0, 11.0)
    context.faults.lease_failed = 0.0
    return True


async def _restore(context: RunContext) -> bool:
    """Restores etcd from a backup some seconds old, with its revision; pods continue to arrive."""
    version = context.server.store.version
    await context.world.crowds.fill(context.rng.randint(2, 4))
    await context.pause(1.0, 4.0)
    if not restore_backup(context.server.store, version):
        return False
    context.on_restored()
    context.server.drop_watches()
    for _ in range(6):
        await context.world.crowds.add(f"node-{context.rng.choice(CROWDED)}", 4, is_mixed=True)
        await context.pause(0.2, 4.0)
    return True


async def _garble(context: RunContext) -> bool:
    """Delivers an object that is not UTF-8; all others are delivered as usual."""
    await context.world.add_garbled()
    await asyncio.sleep(0.5)
    context.server.expire_watches()
    return True


async def _malform(context: RunContext) -> bool:
    """Creates malformed objects: they are reported and skipped, and everything else continues."""
    paths = await context.world.add_malformed()
    await context.pause(0.5, 2.0)
    for path in paths.values():
        await context.world.user.send("PATCH", path, {"metadata": {"annotations": {"sim/seen": "yes"}}}, MERGE_PATCH)
    context.server.expire_watches()
    await context.pause(1.0, 4.0)
    for path in paths.values():
        await context.world.user.send("DELETE", f"{path}?gracePeriodSeconds=0")
    return True


TABLE = (
    Disruption("watches dropped", _drop_watches),
    Disruption("history compacted", _compact),
    Disruption("watches expired", _expire),
    Disruption("pages expired", _expire_pages),
    Disruption("server away", _go_away),
    Disruption("server behind", _lag),
    Disruption("writes timed out", _time_out),
    Disruption("writes forbidden", _forbid_writes, 3),
    Disruption("answers lost", _lose_answers, 8),
    Disruption("binds said to be created", _say_created, 5),
    Disruption("binds said to be missing", _say_missing, 3),
    Disruption("lease calls failing", _fail_leases, 5),
    Disruption("history restored", _restore, 5),
    Disruption("object garbled", _garble, 3),
    Disruption("objects malformed", _malform, 3),
)
