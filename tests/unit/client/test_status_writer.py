"""Statuses of objects: latest state, few writes, none without the lease, none that stands already, none against a rival."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import msgspec
import orjson
import pytest

from multisched.client import status_writer
from multisched.client.limits import CALM_BINDS_MAX, WriteLimiter
from multisched.client.status_writer import (
    CONFLICTS_MAX,
    KIND_PAUSE_S,
    PAUSE_S,
    RETRY_MAX_S,
    RETRY_MIN_S,
    RIVAL_PAUSE_MAX_S,
    RIVALS_LOGGED_AT,
    SETTLE_S,
    WRITES_PER_S,
    ApiStatusWriter,
)
from multisched.cluster.api.direct import DirectTransport
from multisched.cluster.api.server import ApiServer
from multisched.framework.object_status import ObjectCondition, ObjectKey, ObjectStatus
from multisched.framework.ports import LeaseHolder
from multisched.model.object_kinds import ObjectKind
from multisched.model.wire import JSON, MERGE_PATCH, AnswerLostError, ConnectFailedError, Response
from tests.kit import definitions
from tests.unit.client.scripted import Lease, LoopClock, Mirror, a_refusal

pytestmark = pytest.mark.looptime

KIND = ObjectKind.RESOURCE_QUOTA
QUOTAS = "/api/v1/namespaces/default/resourcequotas"
LATENCY_S = 0.01

Answer = Response | Exception


class Sent(msgspec.Struct, frozen=True):
    """A write, as it was sent."""

    at: float
    path: str
    status: Any
    metadata: Any


class Api:
    """The embedded API server. Scripted answers to PATCH come first, and keep it from the server."""

    def __init__(self) -> None:
        self.inner = DirectTransport(ApiServer(LoopClock(), rbac=False))
        self.sent: list[Sent] = []
        self.reads = 0
        self.answers: deque[Answer | None] = deque()
        """None: the server's own."""
        self.lost: deque[Answer] = deque()
        """What is said in place of the answer to a write that was done."""
        self.on_patch: Callable[[], None] = lambda: None

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        content_type: str = JSON,
        accept: str = JSON,
        timeout_s: float = 30.0,
    ) -> Response:
        await asyncio.sleep(LATENCY_S)
        self.reads += method == "GET"
        if method == "PATCH":
            document = orjson.loads(body or b"")
            now = asyncio.get_running_loop().time() - LATENCY_S
            self.sent.append(Sent(now, path, document.get("status"), document["metadata"]))
            self.on_patch()
            answer = self.answers.popleft() if self.answers else None
            if isinstance(answer, Exception):
                raise answer
            if answer is not None:
                return answer
        found = await self.inner.request(method, path, body=body, content_type=content_type, accept=accept)
        if method == "PATCH" and self.lost:
            instead = self.lost.popleft()
            if isinstance(instead, Exception):
                raise instead
            return instead
        return found

    def stream(self, path: str, *, connect_timeout_s: float = 5.0, idle_timeout_s: float = 90.0) -> Any:
        raise NotImplementedError


class Office:
    """What is wanted of each object, under one lease, and the writer that sees to it."""

    def __init__(self) -> None:
        self.api = Api()
        self.lease: LeaseHolder | None = Lease()
        self.wanted: dict[str, ObjectStatus] = {}
        self.paths: dict[ObjectKind, str] = {}
        """Of kinds that are served in another version."""
        self.asked = 0
        self.limiter = WriteLimiter(LoopClock())
        self.writer = ApiStatusWriter(self.api, self.limiter, LoopClock(), self, timeout_s=5.0)
        self.mirror = Mirror()
        self.watch = self.writer.server_statuses.watching(KIND, self.mirror, self.writer.mark)

    def lease_of(self, kind: ObjectKind) -> LeaseHolder | None:
        return self.lease

    def path_of(self, kind: ObjectKind) -> str:
        return self.paths.get(kind, kind.definition.path)

    def status_of(self, key: ObjectKey) -> ObjectStatus | None:
        self.asked += 1
        return self.wanted.get(key[2])

    async def user(self, method: str, path: str, document: Any = None, content_type: str = MERGE_PATCH) -> Any:
        """Somebody else's request."""
        body = None if document is None else orjson.dumps(document)
        answer = await self.api.inner.request(method, path, body=body, content_type=content_type)
        assert answer.status < 300, answer.body
        return orjson.loads(answer.body)

    async def add(self, name: str = "one", *, is_seen: bool = True) -> str:
        """Its uid."""
        made = await self.user("POST", QUOTAS, {"metadata": {"name": name}, "spec": {"hard": {"pods": "9"}}}, JSON)
        if is_seen:
            self.see(made)
        return str(made["metadata"]["uid"])

    def see(self, document: Any) -> None:
        """The watch brings it."""
        self.watch.upsert(f"default/{document['metadata']['name']}", msgspec.Raw(orjson.dumps(document)))

    async def change(self, status: Any, name: str = "one", *, is_seen: bool = True) -> None:
        """Somebody else writes the status."""
        changed = await self.user("PATCH", f"{QUOTAS}/{name}/status", {"status": status})
        if is_seen:
            self.see(changed)

    async def status(self, name: str = "one") -> Any:
        return (await self.user("GET", f"{QUOTAS}/{name}")).get("status")

    def want(self, uid: str, used: object, name: str = "one", *conditions: ObjectCondition) -> None:
        self.wanted[name] = ObjectStatus(uid, {"used": used}, conditions)
        self.writer.mark(key_of(name))

    def result(self, name: str) -> int:
        return self.writer.statistics().results.get((KIND, name), 0)


def key_of(name: str = "one") -> ObjectKey:
    return KIND, "default", name


def gaps_of(office: Office) -> list[float]:
    """Seconds between one write and the next."""
    return [later.at - earlier.at for earlier, later in pairwise(office.api.sent)]


@asynccontextmanager
async def at_work() -> AsyncIterator[Office]:
    office = Office()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(office.writer.run())
        try:
            yield office
        finally:
            task.cancel()


async def test_status_is_merge_patched_with_uid_version_and_deadline() -> None:
    async with at_work() as office:
        uid = await office.add()
        office.want(uid, {"pods": "3"})
        await asyncio.sleep(2)
        (sent,) = office.api.sent
        assert sent.path == f"{QUOTAS}/one/status?timeout=5000ms"
        assert sent.metadata["uid"] == uid
        assert sent.metadata["resourceVersion"]
        assert sent.status == {"used": {"pods": "3"}}
        assert (await office.status())["used"] == {"pods": "3"}
        assert office.api.reads == 0


async def test_many_marks_write_the_latest_state_once() -> None:
    async with at_work() as office:
        uid = await office.add()
        for number in range(100):
            office.want(uid, {"pods": str(number)})
            await asyncio.sleep(0.005)
        await asyncio.sleep(2)
        assert [sent.status["used"]["pods"] for sent in office.api.sent] == ["99"]


async def test_object_is_written_once_per_pause() -> None:
    async with at_work() as office:
        uid = await office.add()
        for number in range(300):
            office.want(uid, {"pods": str(number)})
            await asyncio.sleep(0.1)
        gaps = gaps_of(office)
        assert len(gaps) >= 5
        assert all(PAUSE_S <= gap <= PAUSE_S + 2 * SETTLE_S for gap in gaps)
        await asyncio.sleep(PAUSE_S + SETTLE_S)
        assert office.api.sent[-1].status["used"]["pods"] == "299"


async def test_large_status_is_written_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_writer, "BYTES_PER_S", 100)
    async with at_work() as office:
        uid = await office.add()
        for number in range(300):
            office.want(uid, {f"requests.example.com/{n}": str(number) for n in range(60)})
            await asyncio.sleep(0.1)
        assert gaps_of(office)
        assert all(gap >= 15 for gap in gaps_of(office))


async def test_unchanged_status_is_not_written() -> None:
    async with at_work() as office:
        uid = await office.add()
        await office.change({"used": {"pods": "3"}})
        office.want(uid, {"pods": "3"})
        await asyncio.sleep(3)
        assert office.api.sent == []
        assert office.result("unchanged") == 1


async def test_watch_event_of_an_own_write_calls_no_plugin() -> None:
    async with at_work() as office:
        uid = await office.add()
        office.want(uid, {"pods": "3"})
        await asyncio.sleep(2)
        asked = office.asked
        office.see(await office.user("GET", f"{QUOTAS}/one"))
        await asyncio.sleep(30)
        assert (office.asked, len(office.api.sent)) == (asked, 1)


async def test_status_altered_by_the_server_is_written_once() -> None:
    """Fields that its schema does not have, and amounts that it writes its own way."""
    async with at_work() as office:
        uid = await office.add()

        def keep_otherwise() -> None:
            office.api.lost.append(Response(200, orjson.dumps(kept)))

        made = await office.user("GET", f"{QUOTAS}/one")
        kept = {**made, "metadata": {**made["metadata"], "resourceVersion": "9000"}, "status": {"used": {"pods": "1"}}}
        office.api.on_patch = keep_otherwise
        office.want(uid, {"pods": "1000m"})
        await asyncio.sleep(2)
        for _ in range(5):
            office.writer.mark(key_of())
            await asyncio.sleep(10)
        assert len(office.api.sent) == 1
        assert office.result("unchanged") == 5


async def test_condition_gets_its_time_once() -> None:
    async with at_work() as office:
        uid = await office.add()
        broken = ObjectCondition("InForce", "False", "Broken", "min over max at root.a")
        office.want(uid, {}, "one", broken)
        await asyncio.sleep(10)
        (first,) = office.api.sent[-1].status["conditions"]
        assert first["lastTransitionTime"] == "2026-01-01T00:00:01Z"
        office.want(uid, {"pods": "1"}, "one", ObjectCondition("InForce", "False", "Broken", "min over max at root.b"))
        await asyncio.sleep(10)
        (second,) = office.api.sent[-1].status["conditions"]
        assert (second["message"], second["lastTransitionTime"]) == ("min over max at root.b", "2026-01-01T00:00:01Z")


async def test_since_field_is_set_once() -> None:
    async with at_work() as office:
        uid = await office.add()
        for used in ("1", "2"):
            office.wanted["one"] = ObjectStatus(uid, {"used": {"pods": used}}, since=("startTime",))
            office.writer.mark(key_of())
            await asyncio.sleep(10)
        first, second = office.api.sent
        assert first.status["startTime"].startswith("2026-01-01T00:00:01")
        assert second.status == {"used": {"pods": "2"}}


async def test_kind_is_written_in_the_served_version() -> None:
    async with at_work() as office:
        uid = await office.add()
        office.paths[KIND] = "/api/v9/resourcequotas"
        office.api.answers.append(a_refusal(500))
        office.want(uid, {"pods": "3"})
        await asyncio.sleep(2)
        assert office.api.sent[0].path.startswith("/api/v9/namespaces/default/resourcequotas/one/status?")


# -- leases ----------------------------------------------------------------------------------------------------------


async def test_standby_writes_nothing_and_calls_no_plugin() -> None:
    async with at_work() as office:
        uid = await office.add()
        office.lease = None
        office.want(uid, {"pods": "3"})
        await asyncio.sleep(60)
        assert (office.api.sent, office.asked, office.writer.statistics().backlog) == ([], 0, 0)


async def test_lease_past_its_deadline_pauses_writes() -> None:
    async with at_work() as office:
        lease = Lease()
        office.lease = lease
        lease.is_held = False
        uid = await office.add()
        office.want(uid, {"pods": "3"})
        await asyncio.sleep(60)
        assert office.api.sent == []
        office.want(uid, {"pods": "4"})
        lease.is_held = True
        await asyncio.sleep(3)
        assert [sent.status for sent in office.api.sent] == [{"used": {"pods": "4"}}]


async def test_lease_lost_in_the_limiter_cancels_the_write() -> None:
    async with at_work() as office:
        lease = Lease()
        office.lease = lease
        uid = await office.add()
        office.limiter.note_throttled(30)
        office.want(uid, {"pods": "3"})
        await asyncio.sleep(5)
        lease.is_held = False
        await asyncio.sleep(60)
        assert office.api.sent == []


async def test_status_for_another_uid_is_not_written() -> None:
    async with at_work() as office:
        await office.add()
        office.want("of one that was there before", {"pods": "3"})
        await asyncio.sleep(10)
        assert office.api.sent == []


# -- others, and faults ----------------------------------------------------------------------------------------------


async def test_conflict_reads_and_writes_what_is_still_wanted() -> None:
    async with at_work() as office:
        uid = await office.add()
        await office.change({"used": {"pods": "1"}, "hard": {"pods": "9"}}, is_seen=False)
        office.want(uid, {"pods": "3"})
        await asyncio.sleep(3)
        assert (office.result("conflict"), office.api.reads, office.result("written")) == (1, 1, 1)
        assert await office.status() == {"used": {"pods": "3"}, "hard": {"pods": "9"}}


async def test_conflict_with_the_wanted_state_ends_without_a_write() -> None:
    async with at_work() as office:
        uid = await office.add()
        await office.change({"used": {"pods": "3"}}, is_seen=False)
        office.want(uid, {"pods": "3"})
        await asyncio.sleep(10)
        assert (len(office.api.sent), office.result("written"), office.result("unchanged")) == (1, 0, 1)


async def test_repeated_conflicts_wait_for_the_next_turn() -> None:
    async with at_work() as office:
        uid = await office.add()
        office.api.answers.extend([a_refusal(409, "Conflict")] * 100)
        office.want(uid, {"pods": "3"})
        await asyncio.sleep(SETTLE_S + 1)
        assert len(office.api.sent) == CONFLICTS_MAX
        await asyncio.sleep(60)
        assert 2 * CONFLICTS_MAX <= len(office.api.sent) <= 10 * CONFLICTS_MAX


async def test_deleted_object_is_forgotten() -> None:
    async with at_work() as office:
        uid = await office.add()
        await office.user("DELETE", f"{QUOTAS}/one")
        office.want(uid, {"pods": "3"})
        await asyncio.sleep(60)
        assert (len(office.api.sent), office.result("gone"), office.result("failed")) == (1, 1, 0)
        assert office.writer.statistics().backlog == 0
        assert len(office.writer.server_statuses) == 0
        assert not office.writer._records


async def test_object_deleted_during_its_write_leaves_no_record() -> None:
    async with at_work() as office:
        uid = await office.add()

        def vanish() -> None:
            office.watch.delete("default/one", None)
            office.writer.forget(key_of())
            office.wanted.clear()

        office.api.on_patch = vanish
        office.want(uid, {"pods": "3"})
        await asyncio.sleep(60)
        assert office.writer.statistics().backlog == 0
        assert (len(office.writer.server_statuses), len(office.writer._records)) == (0, 0)


async def test_unseen_object_is_read_first() -> None:
    async with at_work() as office:
        uid = await office.add(is_seen=False)
        office.want(uid, {"pods": "3"})
        await asyncio.sleep(3)
        assert (office.api.reads, len(office.api.sent)) == (1, 1)


async def test_missing_permission_is_logged_once_with_the_rule_and_retried_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with at_work() as office:
        uids = [await office.add(f"q{number}") for number in range(20)]
        office.api.answers.extend([a_refusal(403, "Forbidden", "no")] * 3)
        for number, uid in enumerate(uids):
            office.want(uid, {"pods": "3"}, f"q{number}")
        await asyncio.sleep(KIND_PAUSE_S / 2)
        assert 1 <= len(office.api.sent) <= status_writer.WORKERS
        await asyncio.sleep(4 * KIND_PAUSE_S)
        assert office.result("written") == 20
        (line,) = [record.message for record in caplog.records if "rbac" in record.message]
        assert '"patch" on "resourcequotas/status" of API group ""' in line


async def test_kind_without_a_status_subresource_is_skipped(caplog: pytest.LogCaptureFixture) -> None:
    async with at_work() as office:
        uid = await office.add()
        office.api.answers.extend([a_refusal(404, "NotFound")] * 3)
        office.want(uid, {"pods": "3"})
        await asyncio.sleep(2.5 * KIND_PAUSE_S)
        assert len(office.api.sent) == 3
        assert [record.levelname for record in caplog.records if "subresource" in record.message] == ["ERROR"]
        await asyncio.sleep(KIND_PAUSE_S)
        assert office.result("written") == 1


async def test_recreated_object_is_not_a_missing_subresource(caplog: pytest.LogCaptureFixture) -> None:
    async with at_work() as office:
        uid = await office.add()
        await office.user("DELETE", f"{QUOTAS}/one")
        office.api.answers.append(a_refusal(404, "NotFound"))
        second = await office.add(is_seen=False)
        office.want(uid, {"pods": "3"})
        await asyncio.sleep(1.5)
        office.want(second, {"pods": "4"})
        await asyncio.sleep(10)
        assert (await office.status())["used"] == {"pods": "4"}
        assert not [record for record in caplog.records if "subresource" in record.message]


async def test_refused_status_is_not_resent_until_changed(caplog: pytest.LogCaptureFixture) -> None:
    async with at_work() as office:
        uid = await office.add()
        office.api.answers.append(a_refusal(422, "Invalid", "status.used: no"))
        office.want(uid, {"pods": "x"})
        for _ in range(5):
            await asyncio.sleep(10)
            office.writer.mark(key_of())
        assert (len(office.api.sent), office.result("refused")) == (1, 1)
        assert [record.error for record in caplog.records if "refused" in record.message] == ["status.used: no"]  # type: ignore[attr-defined] # set by extra
        office.want(uid, {"pods": "3"})
        await asyncio.sleep(10)
        assert office.result("written") == 1


async def test_unencodable_status_is_refused_alone() -> None:
    async with at_work() as office:
        uid, other = await office.add(), await office.add("other")
        office.want(uid, {1, 2})
        office.want(other, {"pods": "1"}, "other")
        await asyncio.sleep(10)
        assert (office.result("refused"), office.result("written")) == (1, 1)


@pytest.mark.parametrize(
    "answer",
    [
        ConnectFailedError("no"),
        AnswerLostError("lost"),
        a_refusal(500),
        a_refusal(503, retry_after="7"),
        a_refusal(429, retry_after="7"),
        a_refusal(401),
    ],
    ids=["not-sent", "lost", "500", "503", "429", "401"],
)
async def test_failed_write_is_retried_with_backoff(answer: Answer) -> None:
    async with at_work() as office:
        uid = await office.add()
        office.api.answers.extend([answer] * 8)
        office.want(uid, {"pods": "3"})
        await asyncio.sleep(600)
        gaps = gaps_of(office)
        assert office.result("written") == 1
        assert office.result("failed") == 8
        assert gaps[0] >= max(RETRY_MIN_S, PAUSE_S)
        assert all(gap <= RETRY_MAX_S + 1 for gap in gaps)
        assert gaps[-1] >= RETRY_MAX_S
        assert (await office.status())["used"] == {"pods": "3"}


async def test_write_with_a_lost_response_is_read_and_not_repeated() -> None:
    async with at_work() as office:
        uid = await office.add()
        office.api.lost.append(AnswerLostError("lost"))
        office.want(uid, {"pods": "3"})
        await asyncio.sleep(60)
        assert (len(office.api.sent), office.api.reads, office.result("unchanged")) == (1, 1, 1)


async def test_foreign_change_of_the_own_part_is_corrected() -> None:
    async with at_work() as office:
        uid = await office.add()
        office.want(uid, {"pods": "3"})
        await asyncio.sleep(10)
        await office.change({"used": {"pods": "7"}})
        await asyncio.sleep(10)
        assert (await office.status())["used"] == {"pods": "3"}


async def test_competing_writer_is_answered_less_and_less_often(caplog: pytest.LogCaptureFixture) -> None:
    async with at_work() as office:
        uid = await office.add()
        office.want(uid, {"pods": "3"})
        written = 0
        for _ in range(3_600):
            await asyncio.sleep(1)
            if office.result("written") > written:
                written = office.result("written")
                await office.change({"used": {"pods": "7"}})
        assert len(office.api.sent) <= 20
        assert gaps_of(office)[-1] >= RIVAL_PAUSE_MAX_S
        assert len([record for record in caplog.records if "another program" in record.message]) == 1
        assert written > RIVALS_LOGGED_AT


async def test_ended_competition_is_forgotten() -> None:
    async with at_work() as office:
        uid = await office.add()
        for number in range(4):
            office.want(uid, {"pods": f"1{number}"})
            await asyncio.sleep(200)
            await office.change({"used": {"pods": "7"}})
        await asyncio.sleep(600)
        for number in range(3):
            office.want(uid, {"pods": f"2{number}"})
            await asyncio.sleep(400)
        before = len(office.api.sent)
        for number in range(40):
            office.want(uid, {"pods": f"3{number}"})
            await asyncio.sleep(1)
        assert len(office.api.sent) - before >= 6


async def test_writers_of_other_fields_do_not_compete() -> None:
    async with at_work() as office:
        uid = await office.add()
        for number in range(20):
            office.want(uid, {"pods": str(number)})
            await office.change({"hard": {"pods": str(100 + number)}})
            await asyncio.sleep(PAUSE_S + SETTLE_S)
        assert office.result("written") == 20


# -- where the status is a part of the object ------------------------------------------------------------------------

KOORDINATOR = ObjectKind.KOORDINATOR_QUOTA
TEAMS = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default/elasticquotas"
RUNTIME = "quota.scheduling.koordinator.sh/runtime"


@asynccontextmanager
async def at_work_on_teams() -> AsyncIterator[tuple[Office, Any]]:
    """With one quota of Koordinator, which has an annotation of its owner, and which the watch has brought."""
    async with at_work() as office:
        office.watch = office.writer.server_statuses.watching(KOORDINATOR, office.mirror, office.writer.mark)
        definition = definitions.definition("elasticquotas-koordinator")
        await office.user("POST", definitions.PATH, definition, JSON)
        document = {"metadata": {"name": "one", "annotations": {"own": "text"}}, "spec": {"min": {"cpu": 1}}}
        made = await office.user("POST", TEAMS, document, JSON)
        office.see(made)
        yield office, made


def want_team(office: Office, made: Any, used: str, runtime: str) -> None:
    uid = made["metadata"]["uid"]
    office.wanted["one"] = ObjectStatus(uid, {"used": {"cpu": used}}, annotations={RUNTIME: runtime})
    office.writer.mark((KOORDINATOR, "default", "one"))


async def test_kind_without_status_path_gets_status_and_annotations_only() -> None:
    async with at_work_on_teams() as (office, made):
        want_team(office, made, "3", '{"cpu":"4"}')
        await asyncio.sleep(3)
        (sent,) = office.api.sent
        assert sent.path == f"{TEAMS}/one?timeout=5000ms"
        found = await office.user("GET", f"{TEAMS}/one")
        assert found["metadata"]["annotations"] == {"own": "text", RUNTIME: '{"cpu":"4"}'}
        assert (found["status"], found["spec"]) == ({"used": {"cpu": "3"}}, made["spec"])


async def test_annotations_and_status_are_written_independently() -> None:
    async with at_work_on_teams() as (office, made):
        want_team(office, made, "3", "{}")
        await asyncio.sleep(10)
        want_team(office, made, "3", '{"cpu":"4"}')
        await asyncio.sleep(10)
        want_team(office, made, "2", '{"cpu":"4"}')
        await asyncio.sleep(10)
        office.writer.mark((KOORDINATOR, "default", "one"))
        await asyncio.sleep(10)
        bodies = [(sent.status, sent.metadata.get("annotations")) for sent in office.api.sent]
        assert bodies[1:] == [(None, {RUNTIME: '{"cpu":"4"}'}), ({"used": {"cpu": "2"}}, None)]


async def test_missing_permission_there_is_for_the_object_itself(caplog: pytest.LogCaptureFixture) -> None:
    async with at_work_on_teams() as (office, made):
        office.api.answers.append(a_refusal(403))
        want_team(office, made, "3", "{}")
        await asyncio.sleep(3)
        (line,) = [record.message for record in caplog.records if "rbac" in record.message]
        assert '"patch" on "elasticquotas" of API group "scheduling.sigs.k8s.io"' in line


# -- bounds ----------------------------------------------------------------------------------------------------------


async def test_binds_precede_status_writes() -> None:
    async with at_work() as office:
        uids = [await office.add(f"q{number}") for number in range(20)]
        for _ in range(CALM_BINDS_MAX + 1):
            await office.limiter.enter_bind()
        for number, uid in enumerate(uids):
            office.want(uid, {"pods": "3"}, f"q{number}")
        await asyncio.sleep(SETTLE_S + 0.5)
        assert len(office.api.sent) <= 11
        for _ in range(CALM_BINDS_MAX + 1):
            office.limiter.leave_bind()
        await asyncio.sleep(2)
        assert len(office.api.sent) == 20


async def test_status_writes_per_second_are_limited() -> None:
    async with at_work() as office:
        for number in range(200):
            office.want(await office.add(f"q{number}"), {"pods": "3"}, f"q{number}")
        await asyncio.sleep(SETTLE_S + 2)
        assert len(office.api.sent) <= 2 * WRITES_PER_S + 2
        await asyncio.sleep(5)
        assert len(office.api.sent) == 200


async def test_marks_beyond_the_limit_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_writer, "DUE_MAX", 3)
    async with at_work() as office:
        for number in range(5):
            office.writer.mark(key_of(f"q{number}"))
        office.writer.mark(key_of("q0"))
        assert office.writer.has_dropped_marks
        assert (office.result("dropped"), office.writer.statistics().backlog) == (2, 3)


async def test_restored_backup_invalidates_written_records() -> None:
    async with at_work() as office:
        uid = await office.add()
        before = await office.user("GET", f"{QUOTAS}/one")
        office.want(uid, {"pods": "3"})
        await asyncio.sleep(10)
        office.writer.forget_written()
        office.see({**before, "metadata": {**before["metadata"], "resourceVersion": "1"}})
        await asyncio.sleep(10)
        assert office.result("conflict") == 1
        assert (await office.status())["used"] == {"pods": "3"}


async def test_no_record_is_left_after_all_objects_are_deleted() -> None:
    async with at_work() as office:
        for number in range(10):
            office.want(await office.add(f"q{number}"), {"pods": "3"}, f"q{number}")
        await asyncio.sleep(10)
        for number in range(10):
            office.watch.delete(f"default/q{number}", None)
            office.writer.forget(key_of(f"q{number}"))
            office.wanted.clear()
        await asyncio.sleep(400)
        writer = office.writer
        assert (len(writer.server_statuses), len(writer._records), writer._due, writer._heap) == (0, 0, {}, [])
