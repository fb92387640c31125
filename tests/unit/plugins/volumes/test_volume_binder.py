"""PreBind's writes and its waiting: conflicts, news that come late, and everything that undoes a binding meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from msgspec.structs import replace

from multisched.framework.ports import ObjectRef, VolumeAnswer, VolumeReply
from multisched.framework.status import Code, Status
from multisched.model.objects import Pod
from multisched.model.version import Version, is_older
from multisched.plugins.volumes.volume_binder import CONFLICTS_MAX, NEWER_WAIT_MAX_S
from multisched.plugins.volumes.volume_binding_args import VolumeBindingArgs
from multisched.testing.builders import decode_node, node_document
from multisched.testing.sim_loop import SimLoop, simulate
from tests.unit.plugins.volumes.volume_scenes import PV, PVC, Document, Storage, claim, pod, volume

TIMEOUT_S = 30
CONFLICT = VolumeReply(VolumeAnswer.CONFLICT, message="the object has been modified")


class Desk:
    """A VolumeWriter: its answers are in `replies`, DONE with the next version when there are none."""

    def __init__(self) -> None:
        self.written: list[tuple[str, Version]] = []
        self.named: list[tuple[ObjectRef, Version]] = []
        """Every object that a write names, with the version it was made from."""
        self.replies: list[VolumeReply] = []
        self.next_version: Callable[[], int] = lambda: 0

    async def bind_volume(
        self, volume: ObjectRef, version: Version, claim: ObjectRef, *, claim_version: Version, is_by_scheduler: bool
    ) -> VolumeReply:
        self.named += [(volume, version), (claim, claim_version)]
        return await self._write(f"{volume.name} to {claim.name}{'' if is_by_scheduler else ' as reserved'}", version)

    async def select_node(self, claim: ObjectRef, version: Version, node: str) -> VolumeReply:
        self.named.append((claim, version))
        return await self._write(f"{claim.name} for {node}", version)

    async def _write(self, what: str, version: Version) -> VolumeReply:
        await asyncio.sleep(0.01)
        self.written.append((what, version))
        return self.replies.pop(0) if self.replies else VolumeReply(VolumeAnswer.DONE, self.next_version())


class Bench:
    """A storage cluster with a desk, and one pod that was promised volumes on n0."""

    def __init__(self, *claims: Document, volumes: tuple[Document, ...] = ()) -> None:
        self.desk = Desk()
        self.storage = Storage(VolumeBindingArgs(bind_timeout_s=TIMEOUT_S), self.desk)
        self.desk.next_version = lambda: self.storage.version + 1
        self.storage.put(PV, *volumes)
        self.storage.put(PVC, *claims)
        self.pod: Pod = pod("p", *(one["metadata"]["name"] for one in claims))
        self.storage.assume(self.pod, "n0")

    def start(self) -> asyncio.Task[Status]:
        work = self.storage.plugin.pre_bind(self.storage.view(), self.pod, "n0")
        return asyncio.get_running_loop().create_task(work)

    def bind(self, name: str = "c", volume_name: str = "v", node: str | None = None) -> None:
        """What the persistent volume controller writes."""
        found = self.storage.objects.volume(volume_name)
        selected = {} if node is None else {"node": node}
        self.storage.put(PVC, claim(name, "local" if node is None else "wait", bound=volume_name, **selected))
        host = {"host": "n0"} if found is None else {}
        self.storage.put(PV, volume(volume_name, claim=name, claim_uid=f"claim-{name}", phase="Bound", **host))


def play(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    simulate(story(), SimLoop(1))


def failed(words: str) -> Status:
    return Status(Code.ERROR, reasons=(words,))


def static() -> Bench:
    return Bench(claim("c", "local"), volumes=(volume("v", host="n0"),))


def test_volume_is_written_once_and_awaited() -> None:
    async def story() -> None:
        bench = static()
        before = bench.storage.objects.volume("v")
        assert before is not None
        work = bench.start()
        await asyncio.sleep(5.0)
        assert bench.desk.written == [("v to c", before.version)]
        assert not work.done()
        bench.bind()
        await asyncio.sleep(1.1)
        assert work.result() == Status()

    play(story)


def test_write_has_uids_and_source_versions() -> None:
    async def story() -> None:
        bench = Bench(claim("c", "local"), claim("d"), volumes=(volume("v", host="n0"),))
        objects = bench.storage.objects
        disk, first, second = objects.volume("v"), objects.claim("default", "c"), objects.claim("default", "d")
        assert disk is not None
        assert first is not None
        assert second is not None
        work = bench.start()
        await asyncio.sleep(0.1)
        assert disk.uid
        assert bench.desk.named == [
            (ObjectRef("PersistentVolume", "", "v", disk.uid), disk.version),
            (ObjectRef("PersistentVolumeClaim", "default", "c", "claim-c"), first.version),
            (ObjectRef("PersistentVolumeClaim", "default", "d", "claim-d"), second.version),
        ]
        work.cancel()

    play(story)


@pytest.mark.parametrize(("storage_class", "name"), [("local", "v"), ("wait", "default/c")])
def test_failed_write_without_a_message_names_its_content(storage_class: str, name: str) -> None:
    async def story() -> None:
        bench = Bench(claim("c", storage_class), volumes=(volume("v", host="n0"),))
        bench.desk.replies = [VolumeReply(VolumeAnswer.NOT_FOUND)]
        work = bench.start()
        await asyncio.sleep(0.1)
        assert work.result() == failed(f"{name}: not_found")

    play(story)


def test_claim_gets_its_node_and_is_awaited() -> None:
    async def story() -> None:
        bench = Bench(claim("c"))
        work = bench.start()
        await asyncio.sleep(1.0)
        assert [what for what, _ in bench.desk.written] == ["c for n0"]
        bench.storage.put(PVC, claim("c", node="n0", volume="made"))
        await asyncio.sleep(2.0)
        assert not work.done()
        bench.bind(volume_name="made", node="n0")
        await asyncio.sleep(1.1)
        assert work.result() == Status()

    play(story)


def test_incomparable_versions_only_cost_extra_reads() -> None:
    async def story() -> None:
        for bench in (static(), Bench(claim("c"))):
            bench.desk.next_version = lambda: 0
            work = bench.start()
            await asyncio.sleep(5.0)
            assert not work.done()
            is_static = bench.desk.written[0][0] == "v to c"
            bench.bind(node=None if is_static else "n0")
            await asyncio.sleep(1.1)
            assert work.result() == Status()

    play(story)


def test_existing_content_is_not_written() -> None:
    async def story() -> None:
        bench = Bench(claim("c", "local"), claim("d", node="n0"), volumes=(volume("v", host="n0"),))
        bench.storage.put(PV, volume("v", host="n0", claim="c", claim_uid="claim-c", phase="Bound"))
        work = bench.start()
        await asyncio.sleep(1.0)
        assert bench.desk.written == []
        work.cancel()

    play(story)


NOBODYS, OURS = volume("v", host="n0"), volume("v", host="n0", claim="c", claim_uid="claim-c", phase="Bound")


@pytest.mark.parametrize(
    ("bound_to", "volume_says", "written", "words"),
    [
        ("", NOBODYS, ["v to c"], ""),
        ("v", NOBODYS, ["v to c"], ""),
        ("", OURS, [], ""),
        ("v", OURS, [], ""),
        ("w", NOBODYS, [], 'persistentvolumeclaim "c" is bound to persistentvolume "w"'),
        ("w", OURS, [], 'persistentvolumeclaim "c" is bound to persistentvolume "w"'),
    ],
)
def test_binding_begun_by_a_former_leader_is_completed(
    bound_to: str, volume_says: Document, written: list[str], words: str
) -> None:
    """Of the claim, of the volume, of both or of neither; a claim that has got another volume is left to that one."""

    async def story() -> None:
        bench = static()
        bench.storage.put(PVC, claim("c", "local", bound=bound_to))
        bench.storage.put(PV, volume_says)
        work = bench.start()
        await asyncio.sleep(0.1)
        assert [what for what, _ in bench.desk.written] == written
        if not words:
            bench.bind()
            await asyncio.sleep(1.1)
        assert work.result() == (failed(words) if words else Status())

    play(story)


def test_prebound_volume_is_treated_as_user_intent() -> None:
    async def story() -> None:
        bench = Bench(claim("c", "local"), volumes=(volume("v", host="n0", claim="c", phase="Available"),))
        work = bench.start()
        await asyncio.sleep(1.0)
        assert [what for what, _ in bench.desk.written] == ["v to c as reserved"]
        work.cancel()

    play(story)


def test_conflict_is_retried_if_the_newer_object_is_compatible() -> None:
    async def story() -> None:
        bench = static()
        bench.desk.replies = [CONFLICT]
        work = bench.start()
        await asyncio.sleep(1.0)
        assert len(bench.desk.written) == 1  # until the watch has brought what it met
        bench.storage.put(PV, volume("v", host="n0", labels={"touched": "yes"}))
        await asyncio.sleep(1.0)
        assert [what for what, _ in bench.desk.written] == ["v to c"] * 2
        assert is_older(bench.desk.written[0][1], bench.desk.written[1][1])
        bench.bind()
        await asyncio.sleep(1.1)
        assert work.result() == Status()

    play(story)


def test_conflict_with_another_claim_returns_the_pod_at_once() -> None:
    async def story() -> None:
        bench = static()
        bench.desk.replies = [CONFLICT]
        work = bench.start()
        await asyncio.sleep(0.1)
        bench.storage.put(PV, volume("v", host="n0", claim="other", claim_uid="x", phase="Bound"))
        await asyncio.sleep(0.2)
        assert work.result() == failed('persistentvolume "v" is bound to claim default/other')

    play(story)


def test_claim_bound_before_the_write_is_left_unchanged() -> None:
    async def story() -> None:
        for bench in (static(), Bench(claim("c"))):
            bench.storage.put(PVC, claim("c", bound="w"))
            work = bench.start()
            await asyncio.sleep(0.1)
            assert work.result() == failed('persistentvolumeclaim "c" is bound to persistentvolume "w"')
            assert bench.desk.written == []

    play(story)


def test_repeated_conflicts_fail() -> None:
    async def story() -> None:
        bench = static()
        bench.desk.replies = [CONFLICT] * CONFLICTS_MAX
        work = bench.start()
        await asyncio.sleep(30.0)
        assert work.result() == failed("the object has been modified")
        assert len(bench.desk.written) == CONFLICTS_MAX

    play(story)


@pytest.mark.parametrize("answer", [VolumeAnswer.NOT_FOUND, VolumeAnswer.REFUSED, VolumeAnswer.UNKNOWN])
def test_failed_write_reports_reason_and_permanence(answer: VolumeAnswer) -> None:
    async def story() -> None:
        bench = static()
        bench.desk.replies = [VolumeReply(answer, message="the server's words")]
        work = bench.start()
        await asyncio.sleep(0.5)
        assert work.result() == replace(failed("the server's words"), is_denied=answer is VolumeAnswer.REFUSED)

    play(story)


def _lose_node(bench: Bench) -> None:
    bench.storage.nodes.remove_node("n0")


def _lose_label(bench: Bench) -> None:
    bench.storage.nodes.set_node(decode_node(node_document("n0", labels={"host": "renamed"})))


def _lose_pod(bench: Bench) -> None:
    bench.storage.ledger.release(bench.pod.uid)


def _lose_volume(bench: Bench) -> None:
    bench.storage.objects.remove(PV, "", "v")


def _lose_claim(bench: Bench) -> None:
    bench.storage.objects.remove(PVC, "default", "c")


def _new_claim(bench: Bench) -> None:
    bench.storage.put(PVC, claim("c", "local", uid="another"))


def _bind_elsewhere(bench: Bench) -> None:
    bench.storage.put(PVC, claim("c", "local", bound="w"))


def _unbind(bench: Bench) -> None:
    bench.storage.put(PV, volume("v", host="n0"))


@pytest.mark.parametrize(
    ("happens", "words"),
    [
        (_lose_node, 'failed to get node "n0": node "n0" not found'),
        (_lose_label, 'pv "v" node affinity doesn\'t match node "n0": no matching NodeSelectorTerms'),
        (_lose_pod, 'pod does not exist any more: pod "p" not found'),
        (_lose_volume, 'failed to check binding: persistentvolumes "v" not found'),
        (_lose_claim, 'failed to check binding: persistentvolumeclaims "default/c" not found'),
        (_new_claim, 'failed to check binding: persistentvolumeclaims "default/c" not found'),
        (_unbind, 'ClaimRef got reset for pv "v"'),
        (_bind_elsewhere, 'persistentvolumeclaim "c" is bound to persistentvolume "w"'),
    ],
)
def test_changes_during_a_volume_bind_are_handled(happens: Callable[[Bench], None], words: str) -> None:
    async def story() -> None:
        bench = static()
        work = bench.start()
        await asyncio.sleep(0.02)
        bench.storage.put(PV, volume("v", host="n0", claim="c", claim_uid="claim-c", phase="Bound"))
        await asyncio.sleep(1.0)
        assert not work.done()
        happens(bench)
        await asyncio.sleep(1.1)
        assert work.result() == failed(f"binding volumes: {words}")

    play(story)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (claim("c"), 'provisioning failed for PVC "c"'),
        (claim("c", node="n1"), 'provisioning failed for PVC "c"'),
        (
            claim("c", node="n0", volume="far"),
            'pv "far" node affinity doesn\'t match node "n0": no matching NodeSelectorTerms',
        ),
    ],
)
def test_changes_during_provisioning_are_handled(found: Document, words: str) -> None:
    async def story() -> None:
        bench = Bench(claim("c"))
        bench.storage.put(PV, volume("far", "wait", host="n3"))
        work = bench.start()
        await asyncio.sleep(1.0)
        bench.storage.put(PVC, claim("c", node="n0"))
        await asyncio.sleep(1.1)
        assert not work.done()
        bench.storage.put(PVC, found)
        await asyncio.sleep(1.1)
        assert work.result() == failed(f"binding volumes: {words}")

    play(story)


def test_volume_wait_times_out() -> None:
    async def story() -> None:
        bench = static()
        began_s = asyncio.get_running_loop().time()

        async def ended() -> tuple[Status, float]:
            status = await bench.start()
            return status, asyncio.get_running_loop().time() - began_s

        waiting = asyncio.get_running_loop().create_task(ended())
        await asyncio.sleep(0.02)
        bench.storage.put(PV, volume("v", host="n0", claim="c", claim_uid="claim-c", phase="Bound"))
        status, took_s = await waiting
        assert status == failed("binding volumes: context deadline exceeded")
        assert TIMEOUT_S <= took_s <= TIMEOUT_S + 1.0
        assert (bench.storage.plugin.traits.pre_bind_timeout_s or 0) > TIMEOUT_S

    play(story)


@pytest.mark.parametrize("happens", [_lose_claim, _new_claim])
def test_claim_deleted_during_provisioning_fails_the_bind(happens: Callable[[Bench], None]) -> None:
    async def story() -> None:
        bench = Bench(claim("c"))
        work = bench.start()
        await asyncio.sleep(1.0)
        happens(bench)
        await asyncio.sleep(1.1)
        missed = 'failed to check provisioning pvc: persistentvolumeclaims "default/c" not found'
        assert work.result() == failed(f"binding volumes: {missed}")

    play(story)


def test_claim_assigned_by_another_leader_is_left_unchanged() -> None:
    async def story() -> None:
        bench = Bench(claim("c"))
        bench.desk.replies = [CONFLICT]
        work = bench.start()
        await asyncio.sleep(0.02)
        bench.storage.put(PVC, claim("c", node="n1"))
        await asyncio.sleep(1.1)
        assert work.result() == failed('persistentvolumeclaim "c" is being provisioned for node "n1"')
        assert len(bench.desk.written) == 1

    play(story)


def test_changed_claim_gets_its_node_once_the_watch_shows_it() -> None:
    async def story() -> None:
        bench = Bench(claim("c"))
        first = bench.storage.objects.claim("default", "c")
        assert first is not None
        bench.desk.replies = [CONFLICT]
        work = bench.start()
        await asyncio.sleep(2.0)
        assert [what for what, _ in bench.desk.written] == ["c for n0"]
        bench.storage.put(PVC, claim("c"))
        second = bench.storage.objects.claim("default", "c")
        assert second is not None
        await asyncio.sleep(0.5)
        assert bench.desk.written == [("c for n0", first.version), ("c for n0", second.version)]
        bench.storage.put(PVC, claim("c", node="n0"))
        bench.bind(node="n0")
        await asyncio.sleep(1.1)
        assert work.result() == Status()

    play(story)


def test_unseen_change_is_awaited_for_a_limited_time() -> None:
    async def story() -> None:
        bench = Bench(claim("c"))
        bench.desk.replies = [CONFLICT]
        bench.start()
        await asyncio.sleep(NEWER_WAIT_MAX_S - 0.2)
        assert len(bench.desk.written) == 1
        await asyncio.sleep(1.0)
        assert len(bench.desk.written) == 2

    play(story)
