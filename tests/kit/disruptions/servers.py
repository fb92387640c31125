"""API servers that break watches, forget history, answer with older data, lie about a write, or are restored from a backup."""

from __future__ import annotations

import asyncio

from multisched.model.wire import MERGE_PATCH
from tests.kit.disruptions.scene import Disruption, Scene
from tests.kit.world.backup import restore_backup
from tests.kit.world.nodes import CROWDED

UNWRITABLE = (
    (("POST", "/events"), ("PATCH", "/events/")),
    (("DELETE", "/pods/"),),
    (("POST", "/eviction"),),
    (("PUT", "/configmaps"), ("POST", "/configmaps")),
)
"""What a role may lose for a while, and every writer can do without: method and part of the path."""
LIES = 0.3
"""Of all binds while a proxy answers in the server's place."""


async def _drop_watches(scene: Scene) -> bool:
    return bool(scene.server.drop_watches())


async def _compact(scene: Scene) -> bool:
    scene.server.compact()
    return bool(scene.server.drop_watches())


async def _expire(scene: Scene) -> bool:
    return bool(scene.server.expire_watches())


async def _expire_pages(scene: Scene) -> bool:
    """Everybody lists anew, and history is compacted between the pages, until they ask for all in one piece."""
    scene.server.expire_watches()
    for _ in range(8):
        await scene.pause(0.01, 0.06)
        scene.server.compact()
    return True


async def _go_away(scene: Scene) -> bool:
    scene.server.set_unavailable()
    await scene.pause(0.5, 3.0)
    scene.server.set_available()
    return True


async def _lag(scene: Scene) -> bool:
    """Watches break and are opened again at a server that is behind: its lists are older than what was observed."""
    faults = scene.faults
    faults.older_by = scene.rng.randint(20, 120)
    scene.server.expire_watches()
    for process in scene.replicas.running:
        process.transport.stalled_until_s = scene.now_s() + 2.0
    await scene.pause(1.0, 3.0)
    faults.older_by = 0
    return True


async def _time_out(scene: Scene) -> bool:
    """For some seconds half of all writes end with 504, applied or not."""
    faults = scene.faults
    before = faults.timed_out
    faults.timed_out = 0.5
    await scene.world.crowds.add(f"node-{scene.rng.choice(CROWDED)}", 8, is_mixed=True)
    await scene.pause(1.0, 3.0)
    faults.timed_out = before
    return True


async def _forbid_writes(scene: Scene) -> bool:
    """A role loses what it may write, while urgent pods want the room of others; then it gets that back."""
    faults = scene.faults
    for lost in scene.rng.sample(UNWRITABLE, 2):
        faults.forbidden_writes.update(lost)
    node = f"node-{scene.rng.choice(CROWDED)}"
    await scene.world.crowds.add(node, 8)
    await scene.pause(0.5, 1.5)
    for _ in range(2):
        await scene.world.place_lowly(node, {}, is_urgent=True, scheduler="forecast-scheduler", cpu="1")
    await scene.pause(3.0, 6.0)
    faults.forbidden_writes.clear()
    return True


async def _lose_answers(scene: Scene) -> bool:
    """Binds are done and not answered, or not done; then, when they are asked about, nobody is there, or says no."""
    faults = scene.faults
    before = faults.bind_lost_after, faults.bind_late, faults.refused, faults.bind_rejected
    faults.bind_lost_after, faults.bind_late = 0.4, 0.4
    await scene.world.crowds.add(f"node-{scene.rng.choice(CROWDED)}", 8, is_mixed=True)
    await scene.pause(0.5, 5.5)
    faults.bind_lost_after, faults.bind_late = before[:2]
    faults.refused, faults.bind_rejected = scene.rng.choice(((0.85, 0.0), (0.3, 0.6)))
    await scene.pause(3.0, 5.0)
    faults.refused, faults.bind_rejected = before[2:]
    return True


async def _say_created(scene: Scene) -> bool:
    """Something between us and the server says 201, and has sent nothing on."""
    before, scene.faults.bind_faked = scene.faults.bind_faked, LIES
    await scene.world.crowds.add(f"node-{scene.rng.choice(CROWDED)}", 6, is_mixed=True)
    await scene.pause(0.5, 1.5)
    scene.faults.bind_faked = before
    return True


async def _say_missing(scene: Scene) -> bool:
    """The same with 404."""
    scene.faults.bind_missing = LIES
    await scene.world.crowds.add(f"node-{scene.rng.choice(CROWDED)}", 6, is_mixed=True)
    await scene.pause(0.5, 1.5)
    scene.faults.bind_missing = 0.0
    return True


async def _fail_leases(scene: Scene) -> bool:
    """Half of all calls about leases go wrong for longer than one may go without: whoever leads may lose that, or give it back."""
    scene.faults.lease_odd = 0.5
    await scene.world.crowds.fill(2)
    await scene.pause(4.0, 11.0)
    scene.faults.lease_odd = 0.0
    return True


async def _restore(scene: Scene) -> bool:
    """Etcd comes back from a backup some seconds old, and its revisions with it; pods keep arriving."""
    version = scene.server.store.version
    await scene.world.crowds.fill(scene.rng.randint(2, 4))
    await scene.pause(1.0, 4.0)
    if not restore_backup(scene.server.store, version):
        return False
    scene.on_restored()
    scene.server.drop_watches()
    for _ in range(6):
        await scene.world.crowds.add(f"node-{scene.rng.choice(CROWDED)}", 4, is_mixed=True)
        await scene.pause(0.2, 4.0)
    return True


async def _garble(scene: Scene) -> bool:
    """One object is not UTF-8; whatever else comes beside it is as good as ever."""
    await scene.world.add_garbled()
    await asyncio.sleep(0.5)
    scene.server.expire_watches()
    return True


async def _malform(scene: Scene) -> bool:
    """Objects that are none: they are reported and passed over, and everything else goes on."""
    paths = await scene.world.add_malformed()
    await scene.pause(0.5, 2.0)
    for path in paths.values():
        await scene.world.user.send("PATCH", path, {"metadata": {"annotations": {"sim/seen": "yes"}}}, MERGE_PATCH)
    scene.server.expire_watches()
    await scene.pause(1.0, 4.0)
    for path in paths.values():
        await scene.world.user.send("DELETE", f"{path}?gracePeriodSeconds=0")
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
