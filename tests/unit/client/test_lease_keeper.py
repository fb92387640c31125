"""Who leads when, by the clock of each: several keepers on one small Lease store, in virtual time."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.client.lease import (
    NOT_RENEWED,
    RELEASE_PAUSE_S,
    RELEASE_TIMEOUT_S,
    LeaseKeeper,
)
from multisched.client.lease_term import LeaseSettings, LeaseState
from multisched.model.api_time import micro_timestamp
from multisched.model.wire import AnswerLostError, ConnectFailedError, Response
from multisched.testing.sim_loop import SimLoop, simulate
from tests.unit.client.scripted import EPOCH, Answer, Asked, LoopClock, ScriptedTransport, a_refusal, answer

pytestmark = pytest.mark.looptime

LEASE = "/apis/coordination.k8s.io/v1/namespaces/ms/leases/job"


class LeaseStore:
    """One Lease with compare-and-set; `fault` may answer instead, before or after the write."""

    def __init__(self) -> None:
        self.document: dict[str, Any] | None = None
        self.version = 0
        self.holders: list[tuple[float, str]] = []
        self.fault: Callable[[Asked, Callable[[], Response]], Answer] | None = None

    def respond(self, asked: Asked) -> Answer:
        if self.fault is not None:
            return self.fault(asked, lambda: self.apply(asked))
        return self.apply(asked)

    def apply(self, asked: Asked) -> Response:
        if asked.method == "GET":
            return answer(200, self.document) if self.document is not None else a_refusal(404, "NotFound")
        if asked.method == "POST":
            return self.store(asked, 201) if self.document is None else a_refusal(409, "AlreadyExists")
        if self.document is None:
            return a_refusal(404, "NotFound")
        if asked.body["metadata"]["resourceVersion"] != str(self.version):
            return a_refusal(409, "Conflict")
        return self.store(asked, 200)

    def store(self, asked: Asked, status: int) -> Response:
        self.version += 1
        self.document = asked.body
        self.document["metadata"]["resourceVersion"] = str(self.version)
        holder = self.document["spec"]["holderIdentity"]
        if not self.holders or self.holders[-1][1] != holder:
            self.holders.append((asyncio.get_running_loop().time(), holder))
        return answer(status, self.document)

    def write(self, **spec: Any) -> None:
        """Somebody else's write."""
        self.version += 1
        before = self.document["spec"] if self.document is not None else {}
        self.document = {"metadata": {"name": "job", "resourceVersion": str(self.version)}, "spec": {**before, **spec}}


def make_keeper(
    store: LeaseStore,
    identity: str,
    changes: list[LeaseState] | None = None,
    seed: int = 1,
    latency_s: float = 0.01,
    is_alive: Callable[[], bool] = lambda: True,
    settings: LeaseSettings | None = None,
) -> tuple[LeaseKeeper, ScriptedTransport]:
    transport = ScriptedTransport(respond=store.respond, latency_s=latency_s)
    keeper = LeaseKeeper(
        transport,
        namespace="ms",
        name="job",
        identity=identity,
        clock=LoopClock(),
        rng=random.Random(seed),
        on_change=changes.append if changes is not None else None,
        is_alive=is_alive,
        settings=settings,
    )
    return keeper, transport


async def leading(keeper: LeaseKeeper) -> None:
    """Returns once it does. Asking again and again costs virtual loops a second for each that they play."""
    if keeper.term.state is LeaseState.LEADING:
        return
    before, begun = keeper._on_change, asyncio.Event()

    def changed(state: LeaseState) -> None:
        if before is not None:
            before(state)
        if state is LeaseState.LEADING:
            begun.set()

    keeper._on_change = changed
    try:
        await begun.wait()
    finally:
        keeper._on_change = before


@asynccontextmanager
async def running(*keepers: LeaseKeeper) -> AsyncIterator[list[asyncio.Task[None]]]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(keeper.run()) for keeper in keepers]
        try:
            yield tasks
        finally:
            for task in tasks:
                task.cancel()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"duration_s": 10.0}, "lease duration 10.0 s must exceed the renew deadline 10.0 s"),
        ({"renew_deadline_s": 2.4}, "the renew deadline 2.4 s must exceed 1.2 x the retry period 2.0 s"),
        ({"retry_period_s": 0.0}, "the renew deadline 10.0 s must exceed 1.2 x the retry period 0.0 s"),
        ({"duration_s": 15.5}, "the lease duration is whole seconds, at least 1, got 15.5"),
        ({"duration_s": 0.0}, "the lease duration is whole seconds, at least 1, got 0.0"),
        ({"bind_deadline_s": 5.01}, "the bind deadline 5.01 s must fit between renew deadline and lease duration"),
        ({"bind_deadline_s": -0.01}, "the bind deadline -0.01 s must fit between renew deadline and lease duration"),
    ],
)
def test_unsafe_lease_settings_are_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        LeaseSettings(**values)


@pytest.mark.parametrize(
    "values",
    [
        {"duration_s": 1.0, "renew_deadline_s": 0.9, "retry_period_s": 0.5, "bind_deadline_s": 0.05},
        {"bind_deadline_s": 0.0},
        {"bind_deadline_s": 5.0},
        {"duration_s": 11.0, "bind_deadline_s": 1.0},
        {"retry_period_s": 8.33},
        {"retry_period_s": 0.01},
    ],
)
def test_barely_safe_lease_settings_are_accepted(values: dict[str, float]) -> None:
    settings = LeaseSettings(**values)
    assert {name: getattr(settings, name) for name in values} == values


def test_lease_times_are_utc_micro_timestamps() -> None:
    assert micro_timestamp(EPOCH.replace(microsecond=70)) == "2026-01-01T00:00:00.000070Z"


async def test_missing_lease_is_created_and_binds_start_if_it_is_new() -> None:
    store = LeaseStore()
    keeper, _ = make_keeper(store, "a")
    async with running(keeper):
        await leading(keeper)
        keeper.term.count_as_new()
        assert keeper.term.may_bind()
        assert (keeper.term.number, keeper.term.may_bind_in_s()) == (1, 0.0)
        assert store.document is not None
        assert (store.document["apiVersion"], store.document["kind"]) == ("coordination.k8s.io/v1", "Lease")
        assert store.document["spec"] == {
            "holderIdentity": "a",
            "leaseDurationSeconds": 15,
            "acquireTime": "2026-01-01T00:00:00.010000Z",
            "renewTime": "2026-01-01T00:00:00.010000Z",
            "leaseTransitions": 0,
        }


@pytest.mark.parametrize("is_answer_lost", [False, True])
async def test_missing_lease_may_have_been_deleted_and_its_duration_is_waited_for(
    is_answer_lost: bool,
) -> None:
    store = LeaseStore()
    losses = [is_answer_lost]

    def lose_the_first_post(asked: Asked, apply: Callable[[], Response]) -> Answer:
        response = apply()
        return AnswerLostError("reset") if asked.method == "POST" and losses.pop() else response

    store.fault = lose_the_first_post
    keeper, _ = make_keeper(store, "a")
    async with running(keeper):
        await leading(keeper)
        assert keeper.term.may_bind_if_new()
        await asyncio.sleep(keeper.term.unrecorded_holder_wait_s() - 0.01)
        assert 12.0 < asyncio.get_running_loop().time() < LeaseSettings().duration_s + 0.01
        assert (keeper.term.may_bind(), keeper.term.may_bind_in_s() > 0) == (False, True)
        await asyncio.sleep(0.02)
        assert (keeper.term.may_bind(), keeper.term.may_bind_in_s()) == (True, 0.0)


async def test_renewal_takes_one_call_per_retry_period_and_keeps_the_acquire_time() -> None:
    store = LeaseStore()
    keeper, transport = make_keeper(store, "a")
    async with running(keeper):
        await asyncio.sleep(60)
        assert store.document is not None
        assert store.document["spec"]["acquireTime"] == "2026-01-01T00:00:00.010000Z"
        assert store.document["spec"]["leaseTransitions"] == 0
        assert 28 <= len(transport.of("PUT")) <= 30
        assert len(transport.of("GET")) == 1
        assert all(put.query["timeout"].endswith("ms") for put in transport.of("PUT"))


def why_standing_by(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [vars(record)["why"] for record in caplog.records if record.message == "standing by"]


async def test_standby_logs_the_holder_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    store = LeaseStore()
    first, _ = make_keeper(store, "a")
    second, _ = make_keeper(store, "b", seed=2)
    async with running(first, second):
        await asyncio.sleep(30)
        assert why_standing_by(caplog) == ["held by 'a'"]
        await first.release()
        await leading(second)
        await second.release()


async def test_standby_logs_the_wait_for_a_deleted_lease(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    store = LeaseStore()
    store.write(holderIdentity="dead", leaseDurationSeconds=3600, renewTime="2026-01-31T18:00:00.000000Z")
    keeper, _ = make_keeper(store, "b")
    async with running(keeper):
        await asyncio.sleep(5)
        store.document = None
        await asyncio.sleep(5)
        told = ["held by 'dead'", "it was deleted; waiting until the last holder's lease would have expired"]
        assert why_standing_by(caplog) == told


async def test_released_lease_is_taken_within_a_retry_period() -> None:
    store = LeaseStore()
    first, _ = make_keeper(store, "a")
    second, _ = make_keeper(store, "b", seed=2)
    async with running(first, second):
        await asyncio.sleep(30)
        assert first.term.may_bind()
        await first.release()
        assert (first.term.may_bind(), first.term.state) == (False, LeaseState.RELEASED)
        released = asyncio.get_running_loop().time()
        await leading(second)
        assert asyncio.get_running_loop().time() - released <= 2.1
        assert second.term.may_bind()
        assert store.document is not None
        await second.release()
        assert store.document["spec"]["leaseDurationSeconds"] == 1
    assert [holder for _, holder in store.holders] == ["a", "", "b", ""]


@pytest.mark.parametrize("status", [429, 503, 409])
async def test_refused_release_is_retried(status: int) -> None:
    store = LeaseStore()
    keeper, transport = make_keeper(store, "a")
    async with running(keeper):
        await leading(keeper)
        puts = len(transport.of("PUT"))

        def refuse_first(asked: Asked, apply: Callable[[], Response]) -> Answer:
            is_first = asked.method == "PUT" and len(transport.of("PUT")) <= puts + 1
            return a_refusal(status, "no") if is_first else apply()

        store.fault = refuse_first
        await keeper.release()
    assert len(transport.of("PUT")) == puts + 2
    assert store.document is not None
    assert store.document["spec"]["holderIdentity"] == ""


async def test_unanswered_release_is_retried_after_a_read() -> None:
    """The first PUT is lost before it arrives, and the read after it too."""
    store = LeaseStore()
    keeper, transport = make_keeper(store, "a")
    async with running(keeper):
        await leading(keeper)
        lost = ["PUT", "GET"]

        def lose(asked: Asked, apply: Callable[[], Response]) -> Answer:
            if lost and asked.method == lost[0]:
                return ConnectFailedError(f"{lost.pop(0)} refused")
            return apply()

        store.fault = lose
        seen = len(transport.asked)
        await keeper.release()
    assert [asked.method for asked in transport.asked[seen:]] == ["PUT", "GET", "GET", "PUT"]
    assert store.document is not None
    assert store.document["spec"]["holderIdentity"] == ""


@pytest.mark.parametrize("becomes", ["held by another", "deleted"])
async def test_foreign_lease_is_not_released(becomes: str, caplog: pytest.LogCaptureFixture) -> None:
    """The first PUT of the release is lost; the read after it shows that there is nothing left to release."""
    store = LeaseStore()
    keeper, transport = make_keeper(store, "a")
    async with running(keeper):
        await leading(keeper)
        seen = len(transport.asked)

        def lose_to_others(asked: Asked, apply: Callable[[], Response]) -> Answer:
            store.fault = None
            if becomes == "deleted":
                store.document = None
            else:
                store.write(holderIdentity="b")
            return ConnectFailedError("PUT refused")

        store.fault = lose_to_others
        await keeper.release()
    assert [asked.method for asked in transport.asked[seen:]] == ["PUT", "GET"]
    assert (store.document or {"spec": {"holderIdentity": None}})["spec"]["holderIdentity"] in (None, "b")
    assert not [record for record in caplog.records if "not released" in record.message]


async def test_failed_release_times_out_and_logs_the_expiry(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = LeaseStore()
    keeper, transport = make_keeper(store, "a")
    async with running(keeper):
        await leading(keeper)
        store.fault = lambda asked, apply: a_refusal(503)
        seen, began_s = len(transport.asked), asyncio.get_running_loop().time()
        await keeper.release()
        assert asyncio.get_running_loop().time() - began_s == pytest.approx(RELEASE_TIMEOUT_S, abs=0.001)
        assert keeper.term.state is LeaseState.RELEASED
    tried = [asked.method for asked in transport.asked[seen:]]
    assert tried == ["PUT", *["GET"] * (len(tried) - 1)]
    assert len(tried) > 2
    (told,) = [record for record in caplog.records if record.message == "lease not released; it will expire"]
    assert vars(told)["lease"] == "job"


@pytest.mark.parametrize("cancelled_after_s", [0.0, 0.5, 1.0 + RELEASE_PAUSE_S / 2, 1.5])
async def test_started_release_is_completed_despite_cancellation(cancelled_after_s: float) -> None:
    """Before anything is sent, during the first write, while it waits to read, and during the second write."""
    store = LeaseStore()
    keeper, transport = make_keeper(store, "a")
    async with anyio.create_task_group() as group:
        group.start_soon(keeper.run)
        await leading(keeper)
        refusals = [a_refusal(503)]
        store.fault = lambda asked, apply: refusals.pop() if refusals else apply()
        transport.latency_of = lambda method: 1.0 if refusals else 0.2
        released = asyncio.ensure_future(keeper.release())
        await asyncio.sleep(cancelled_after_s)
        group.cancel_scope.cancel()
    assert keeper.term.state is LeaseState.RELEASED
    await released
    assert store.document is not None
    assert store.document["spec"]["holderIdentity"] == ""


async def test_cancelled_keeper_lets_its_lease_expire() -> None:
    store = LeaseStore()
    keeper, _ = make_keeper(store, "a")
    async with running(keeper):
        await leading(keeper)
    assert store.document is not None
    assert store.document["spec"]["holderIdentity"] == "a"
    assert not keeper.term.may_bind()


async def test_expired_lease_is_taken_after_its_duration_and_binds_wait_one_deadline() -> None:
    store = LeaseStore()
    store.write(holderIdentity="dead", leaseDurationSeconds=15, leaseTransitions=4)
    keeper, _ = make_keeper(store, "b")
    async with running(keeper):
        await leading(keeper)
        assert 15 <= asyncio.get_running_loop().time() <= 15.2
        assert not keeper.term.may_bind()
        assert keeper.term.may_bind_in_s() == pytest.approx(5, abs=0.01)
        await asyncio.sleep(keeper.term.may_bind_in_s())
        assert keeper.term.may_bind()
        assert store.document is not None
        assert store.document["spec"]["leaseTransitions"] == 5


@pytest.mark.parametrize("seed", range(8))
async def test_expired_lease_is_taken_at_its_expiry(seed: int) -> None:
    """However the pauses between the looks before fall."""
    store = LeaseStore()
    store.write(holderIdentity="gone", leaseDurationSeconds=15, renewTime=micro_timestamp(EPOCH), leaseTransitions=0)
    keeper, transport = make_keeper(store, "b", seed=seed)
    async with running(keeper):
        await leading(keeper)
    (took_s,) = [at_s for at_s, holder in store.holders if holder == "b"]
    assert took_s == pytest.approx(15 + transport.asked[0].at, abs=0.1)


async def test_only_record_changes_count_not_its_timestamps() -> None:
    store = LeaseStore()
    store.write(holderIdentity="fast", leaseDurationSeconds=15, renewTime="1999-01-01T00:00:00.000000Z")
    keeper, _ = make_keeper(store, "b")
    async with running(keeper):
        for second in range(60):
            await asyncio.sleep(1)
            store.write(renewTime=f"1999-01-01T00:00:{second:02d}.000000Z")
        assert keeper.term.state is LeaseState.STANDBY


def why_lost(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What an operator is told."""
    return [vars(record)["why"] for record in caplog.records if record.message == "lease lost"]


async def test_leader_without_renewal_stops_binding_before_another_may_lead(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = LeaseStore()
    changes: list[LeaseState] = []
    old, old_transport = make_keeper(store, "a", changes)
    new, _ = make_keeper(store, "b", seed=3)
    async with running(old):
        await leading(old)
        async with running(new):
            await asyncio.sleep(20)
            old_transport.respond = lambda _: ConnectFailedError("refused")
            cut = asyncio.get_running_loop().time()
            await asyncio.sleep(7.9)
            assert old.term.may_bind()
            await asyncio.sleep(2.2)
            assert not old.term.may_bind()
            await leading(new)
            taken = asyncio.get_running_loop().time()
            assert taken - cut >= 13
            assert not new.term.may_bind()
            assert changes == [LeaseState.LEADING, LeaseState.STANDBY]
            assert why_lost(caplog) == ["the renew deadline passed"]


@pytest.mark.parametrize("slow", ["POST", "PUT"])
async def test_renew_deadline_counts_from_the_request(slow: str) -> None:
    """Others count from when they see the record change, which may be long before the answer reaches us (I9)."""
    store = LeaseStore()
    keeper, transport = make_keeper(store, "a")
    sent_at: list[float] = []

    def cut_after_the_slow_one(asked: Asked) -> Answer:
        """Writes of one kind take four seconds from the server to us; nothing gets through after the first of them."""
        if sent_at:
            return ConnectFailedError("refused")
        if asked.method == slow:
            sent_at.append(asked.at)
        return store.apply(asked)

    transport.respond = cut_after_the_slow_one
    transport.latency_of = lambda method: 4.0 if method == slow else 0.01
    async with running(keeper):
        await asyncio.sleep(9.9)
        keeper.term.count_as_new()
        deadline = sent_at[0] + LeaseSettings().renew_deadline_s
        assert keeper.term.may_bind()
        await asyncio.sleep(deadline - asyncio.get_running_loop().time())
        assert not keeper.term.may_bind()


async def test_hung_program_neither_renews_nor_takes_a_lease() -> None:
    store = LeaseStore()
    changes: list[LeaseState] = []
    is_alive = True
    keeper, transport = make_keeper(store, "a", changes, is_alive=lambda: is_alive)
    async with running(keeper):
        await leading(keeper)
        keeper.term.count_as_new()
        is_alive = False
        await asyncio.sleep(9.9)
        assert keeper.term.may_bind()
        await asyncio.sleep(20)
        assert changes == [LeaseState.LEADING, LeaseState.STANDBY]
        assert not transport.of("PUT")
        is_alive = True
        await leading(keeper)


async def test_hung_program_is_logged_with_backoff(
    caplog: pytest.LogCaptureFixture,
) -> None:
    is_alive = True
    keeper, _ = make_keeper(LeaseStore(), "a", is_alive=lambda: is_alive)
    async with running(keeper):
        for _ in range(2):
            await leading(keeper)
            is_alive = False
            caplog.clear()
            await asyncio.sleep(120)
            said = [vars(record)["for_s"] for record in caplog.records if record.message == NOT_RENEWED]
            assert said[0] == 0
            assert 4 <= len(said) <= 6, "of some 60 tries"
            is_alive = True


async def test_hung_lease_call_ends_by_the_renew_deadline() -> None:
    store = LeaseStore()
    changes: list[LeaseState] = []
    keeper, transport = make_keeper(store, "a", changes)
    async with running(keeper):
        await asyncio.sleep(3.0)
        transport.latency_s = 1e6
        await asyncio.sleep(12)
        assert changes[-1] is LeaseState.STANDBY
        assert not keeper.term.may_bind()


async def test_renewal_with_a_lost_response_is_found_by_a_read() -> None:
    store = LeaseStore()
    puts = 0

    def lose_every_other_put(asked: Asked, apply: Callable[[], Response]) -> Answer:
        nonlocal puts
        response = apply()
        if asked.method != "PUT" or response.status != 200:
            return response
        puts += 1
        return AnswerLostError("reset") if puts % 2 else response

    keeper, _ = make_keeper(store, "a")
    async with running(keeper):
        await leading(keeper)
        keeper.term.count_as_new()
        store.fault = lose_every_other_put
        for _ in range(100):
            await asyncio.sleep(1)
            assert keeper.term.may_bind()
        assert keeper.term.number == 1


async def test_acquisition_with_a_lost_response_keeps_the_wait_after_expiry() -> None:
    store = LeaseStore()
    store.write(holderIdentity="dead", leaseDurationSeconds=15)
    losses = [1]

    def lose_the_first_put(asked: Asked, apply: Callable[[], Response]) -> Answer:
        response = apply()
        return AnswerLostError("reset") if asked.method == "PUT" and losses and losses.pop() else response

    store.fault = lose_the_first_put
    keeper, _ = make_keeper(store, "b")
    async with running(keeper):
        await leading(keeper)
        assert asyncio.get_running_loop().time() < 18
        assert keeper.term.may_bind_in_s() > 0


async def test_former_process_with_our_identity_is_another_holder() -> None:
    store = LeaseStore()
    store.write(holderIdentity="b", leaseDurationSeconds=15)
    keeper, _ = make_keeper(store, "b")
    async with running(keeper):
        await leading(keeper)
        assert asyncio.get_running_loop().time() >= 15
        assert keeper.term.may_bind_in_s() > 0


async def test_foreign_holder_ends_the_term_at_the_next_renewal(caplog: pytest.LogCaptureFixture) -> None:
    store = LeaseStore()
    changes: list[LeaseState] = []
    keeper, _ = make_keeper(store, "a", changes)
    async with running(keeper):
        await leading(keeper)
        store.write(holderIdentity="usurper")
        await asyncio.sleep(2.1)
        assert changes == [LeaseState.LEADING, LeaseState.STANDBY]
        assert not keeper.term.may_bind()
        assert why_lost(caplog) == ["held by 'usurper'"]


async def test_former_leader_waits_for_the_binds_of_a_dead_foreign_holder() -> None:
    """What a term of ours left on its way is in our own cache; what the usurper's did is not."""
    store = LeaseStore()
    keeper, _ = make_keeper(store, "a")
    async with running(keeper):
        await leading(keeper)
        store.write(holderIdentity="usurper", leaseDurationSeconds=15)
        await asyncio.sleep(2.1)
        assert keeper.term.state is LeaseState.STANDBY
        await leading(keeper)
        assert not keeper.term.may_bind()
        assert keeper.term.may_bind_in_s() == pytest.approx(5, abs=0.01)


async def test_process_that_loses_and_retakes_an_expired_lease_waits_for_its_last_holder() -> None:
    store = LeaseStore()
    store.write(holderIdentity="dead", leaseDurationSeconds=9)
    short = LeaseSettings(duration_s=9.0, renew_deadline_s=3.0, retry_period_s=1.0, bind_deadline_s=5.0)
    changes: list[LeaseState] = []
    keeper, _ = make_keeper(store, "a", changes, settings=short)
    async with running(keeper):
        await leading(keeper)
        until_s = asyncio.get_running_loop().time() + keeper.term.may_bind_in_s()
        store.fault = lambda asked, apply: ConnectFailedError("refused")
        await asyncio.sleep(3.1)
        store.fault = None
        await leading(keeper)
        assert changes == [LeaseState.LEADING, LeaseState.STANDBY, LeaseState.LEADING]
        assert asyncio.get_running_loop().time() + keeper.term.may_bind_in_s() == pytest.approx(until_s)


async def test_leader_recreates_its_deleted_lease() -> None:
    store = LeaseStore()
    keeper, _ = make_keeper(store, "a")
    async with running(keeper):
        await leading(keeper)
        keeper.term.count_as_new()
        store.document = None
        await asyncio.sleep(5)
        assert keeper.term.may_bind()
        assert keeper.term.number == 1
        assert store.document is not None


async def test_lease_deleted_under_another_holder_counts_as_expired() -> None:
    store = LeaseStore()
    store.write(holderIdentity="a", leaseDurationSeconds=15)
    keeper, _ = make_keeper(store, "b")
    async with running(keeper):
        await asyncio.sleep(5)
        store.document = None
        await leading(keeper)
        assert keeper.term.may_bind_in_s() > 0


async def test_deleted_lease_is_not_taken_while_its_holder_may_bind() -> None:
    store = LeaseStore()
    keepers = [make_keeper(store, name, seed=n) for n, name in enumerate("ab")]
    async with running(keepers[0][0]):
        await leading(keepers[0][0])
        async with running(keepers[1][0]):
            await _watch(keepers, 3)
            keepers[0][1].respond = lambda _: ConnectFailedError("cut")
            store.document = None
            await _watch(keepers, 25)
            assert keepers[1][0].term.may_bind()


@pytest.mark.parametrize("last_seen", ["", "a"])
async def test_deleted_lease_may_have_been_taken_since_it_was_last_seen(last_seen: str) -> None:
    """It was free then, or our own, before we lost it; who took it since holds it for as long as a lease lasts."""
    store = LeaseStore()
    store.write(holderIdentity="", leaseDurationSeconds=1)
    keeper, _ = make_keeper(store, "a")
    if not last_seen:
        store.fault = lambda asked, apply: apply() if asked.method == "GET" else a_refusal(429)
    async with running(keeper):
        await asyncio.sleep(1.0)
        store.fault = lambda asked, apply: ConnectFailedError("cut")
        await asyncio.sleep(30.0)
        assert (keeper.term.state, keeper.term.number) == (LeaseState.STANDBY, 1 if last_seen else 0)
        store.document, store.fault = None, None
        await asyncio.sleep(LeaseSettings().duration_s)
        assert keeper.term.state is LeaseState.STANDBY
        await leading(keeper)


@pytest.mark.parametrize(
    "bad", [a_refusal(500), a_refusal(403), a_refusal(429), Response(200, b"{"), Response(200, b'{"spec":{"x":1}}')]
)
async def test_invalid_responses_keep_the_process_standby_and_polling(bad: Response) -> None:
    store = LeaseStore()
    store.fault = lambda asked, apply: bad
    keeper, transport = make_keeper(store, "a")
    async with running(keeper):
        await asyncio.sleep(30)
        assert keeper.term.state is LeaseState.STANDBY
        assert 15 <= len(transport.asked) <= 32
        store.fault = None
        await leading(keeper)


async def test_failed_lease_call_is_logged_with_its_response(caplog: pytest.LogCaptureFixture) -> None:
    """Of a standby, which reads, and of a leader, which writes."""
    caplog.set_level("INFO")
    store = LeaseStore()
    store.fault = lambda asked, apply: a_refusal(503)
    keeper, _ = make_keeper(store, "a")
    async with running(keeper):
        await asyncio.sleep(5)
        store.fault = None
        await leading(keeper)
        store.fault = lambda asked, apply: a_refusal(500)
        await asyncio.sleep(5)
    told = [vars(record)["error"] for record in caplog.records if record.message == "lease call failed"]
    assert set(told) == {"GET answered 503", "PUT answered 500"}


async def test_forbidden_lease_is_warned_about_with_the_server_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, forbidden = LeaseStore(), a_refusal(403, "Forbidden", "leases is forbidden")
    keeper, _ = make_keeper(store, "a")
    async with running(keeper):
        store.fault = lambda asked, apply: forbidden
        await asyncio.sleep(5)
        store.fault = lambda asked, apply: forbidden if asked.method == "POST" else apply()
        await asyncio.sleep(5)
    told = {(record.levelname, record.message, vars(record)["error"]) for record in caplog.records}
    assert told == {
        ("WARNING", "lease call failed", "GET answered 403: leases is forbidden"),
        ("WARNING", "lease call failed", "POST answered 403: leases is forbidden"),
    }


async def test_lasting_refusal_is_logged_with_backoff_and_fix(caplog: pytest.LogCaptureFixture) -> None:
    store = LeaseStore()
    keeper, transport = make_keeper(store, "a")
    async with running(keeper):
        for status in (401, 403):
            store.fault = lambda asked, apply, status=status: a_refusal(status, "", "no")
            await asyncio.sleep(300)
    told = [(vars(one)["error"], vars(one)["fix"]) for one in caplog.records if one.message == "lease call failed"]
    assert len(transport.asked) > 200
    assert [error for error, _ in told] == ["GET answered 401: no"] * 8 + ["GET answered 403: no"] * 8
    assert ["renew the token" in fix for _, fix in told] == [True] * 8 + [False] * 8
    assert "create and update of leases" in told[-1][1]


@given(st.integers(0, 2**32), st.lists(st.tuples(st.floats(0.1, 20), st.floats(0.1, 25)), min_size=1, max_size=2))
def test_two_keepers_never_bind_together(seed: int, outages: list[tuple[float, float]]) -> None:
    """One of them loses the network again and again, answers included; never may both bind (I9)."""
    simulate(_alternate(seed, outages), SimLoop(seed))


async def _alternate(seed: int, outages: list[tuple[float, float]]) -> None:
    store = LeaseStore()
    rng = random.Random(seed)
    keepers = [make_keeper(store, name, seed=seed + n, latency_s=0.05) for n, name in enumerate("ab")]
    async with running(*(keeper for keeper, _ in keepers)):
        for up_s, down_s in outages:
            victim = rng.choice(keepers)[1]
            await _watch(keepers, up_s)
            victim.respond = lambda asked: (store.apply(asked), AnswerLostError("cut"))[1]
            await _watch(keepers, down_s / 4)
            victim.respond = lambda _: ConnectFailedError("cut")
            await _watch(keepers, down_s)
            victim.respond = store.respond
        await _watch(keepers, 25)
        assert sum(keeper.term.may_bind() for keeper, _ in keepers) == 1


async def _watch(keepers: list[tuple[LeaseKeeper, ScriptedTransport]], seconds: float) -> None:
    for _ in range(int(seconds) + 1):
        await asyncio.sleep(1.0)
        assert sum(keeper.term.may_bind() for keeper, _ in keepers) <= 1
