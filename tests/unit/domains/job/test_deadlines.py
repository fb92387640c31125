"""Deadlines of pods, the order of the queue by them, and predicted waits."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from domains.job.deadlines.deadline import (
    ANNOTATION,
    DeadlineError,
    DeadlineOrigin,
    DeadlineRule,
    annotated_rule,
    next_run_s,
    read_annotation,
    rule_of,
)
from domains.job.deadlines.deadline_sort import DeadlineSort
from domains.job.deadlines.waits import Pool, Room, RunningPod, WaitingPod, predict_waits
from multisched.framework.points import QueuedPod
from multisched.model.cluster_objects import CronJob, Job
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Owner, Pod
from multisched.model.pod_outcome import PodOutcome
from multisched.testing.builders import make_context, make_pod

HOUR_S = 3600.0
JOB = Owner("Job", "j", "job-uid", "batch/v1")


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


class Objects:
    """The Jobs and CronJobs of a test."""

    sequence = 0

    def __init__(self, *found: Any) -> None:
        self.found = {(type(one), one.namespace, one.name): one for one in found}
        self.number = 0

    def get(self, kind: ObjectKind, namespace: str, name: str) -> Any:
        return self.found.get(({ObjectKind.JOB: Job, ObjectKind.CRON_JOB: CronJob}[kind], namespace, name))

    def versions(self, *kinds: ObjectKind) -> tuple[int, ...]:
        return (self.number,) * len(kinds)


def plugin(*objects: Any, **args: Any) -> tuple[DeadlineSort, Objects]:
    found = Objects(*objects)
    return DeadlineSort(replace(make_context(domain="job"), objects=found), args), found


def pod(
    name: str = "p", *, created_s: float = 1_000.0, deadline: str = "", owner: Owner | None = None, **fields: Any
) -> Pod:
    annotations = {ANNOTATION: deadline} if deadline else {}
    return replace(make_pod(name, annotations=annotations, **fields), created_s=created_s, owner=owner)


def ordered(sort: DeadlineSort, *pods: Pod) -> list[str]:
    return [one.name for one in sorted(pods, key=lambda one: sort.sort_key(QueuedPod(one, 5.0)))]


def learn(sort: DeadlineSort, like: Pod, *durations_s: float, start_up_s: float = 0.0) -> None:
    for number, duration_s in enumerate(durations_s):
        end_s = 1e6 * (number + 1)
        began_s = end_s - duration_s
        ended = replace(like, uid=f"ended-{number}", phase="Succeeded")
        sort.see_outcome(PodOutcome(ended, scheduled_s=began_s - start_up_s, began_s=began_s, ended_s=end_s))


# -- deadlines -----------------------------------------------------------------------------------------------------------


def test_a_time_and_a_duration_from_the_creation_are_deadlines() -> None:
    assert read_annotation("2026-11-29T18:00:00+01:00").of(5.0) == at("2026-11-29T17:00:00")
    assert read_annotation("1h30m").of(5.0) == 5_405.0


@pytest.mark.parametrize(
    "text", ["", "soon", "90", "-5m", "0s", "2026-11-29T18:00:00", "2026-13-29T18:00:00Z", "2026", "x" * 9_999]
)
def test_a_misspelt_deadline_is_refused_with_the_fix_and_has_no_effect(text: str) -> None:
    with pytest.raises(DeadlineError, match="write a time such as"):
        read_annotation(text)
    assert rule_of(annotated_rule({ANNOTATION: text}), None, None, 60.0) == DeadlineRule(
        DeadlineOrigin.MAX_WAIT, 60.0, is_relative=True
    )
    assert plugin()[0].remarks_of_pod(make_pod("p", annotations={ANNOTATION: text}))


@given(st.text(max_size=40))
def test_no_text_breaks_the_reader(text: str) -> None:
    rule = rule_of(annotated_rule({ANNOTATION: text}), None, None, 60.0)
    assert rule.origin in (DeadlineOrigin.ANNOTATION, DeadlineOrigin.MAX_WAIT)


def test_the_active_deadline_counts_from_the_start_of_the_job() -> None:
    job = Job(name="j", created_s=100.0, started_s=250.0, active_deadline_s=60)
    assert rule_of(None, job, None, HOUR_S).of(1_000.0) == 310.0
    assert rule_of(None, replace(job, started_s=0.0), None, HOUR_S).of(1_000.0) == 160.0
    assert rule_of(annotated_rule({ANNOTATION: "10s"}), job, None, HOUR_S).of(1_000.0) == 1_010.0


def test_the_next_run_is_that_of_the_time_zone() -> None:
    cron = CronJob(name="c", schedule="0 9 * * *", time_zone="Asia/Tokyo")
    assert next_run_s(cron, at("2026-11-29T00:00:00")) == at("2026-11-30T00:00:00")
    assert next_run_s(replace(cron, time_zone=""), at("2026-11-29T00:00:00")) == at("2026-11-29T09:00:00")
    assert next_run_s(replace(cron, schedule="never"), 0.0) is None
    job = Job(name="j", created_s=at("2026-11-28T23:59:00"), active_deadline_s=None)
    assert rule_of(None, job, cron, HOUR_S) == DeadlineRule(DeadlineOrigin.NEXT_RUN, at("2026-11-29T00:00:00"))


# -- order -----------------------------------------------------------------------------------------------------------------


def test_priority_comes_first_then_the_latest_start() -> None:
    sort, _ = plugin()
    late, soon = pod("late", deadline="50m"), pod("soon", deadline="20m", created_s=1_010.0)
    none, urgent = pod("none"), pod("urgent", priority=5)
    assert ordered(sort, late, none, soon, urgent) == ["urgent", "soon", "late", "none"]


def test_a_long_run_must_start_earlier() -> None:
    sort, _ = plugin()
    long, short = pod("long", deadline="60m", owner=JOB), pod("short", deadline="50m")
    assert ordered(sort, long, short) == ["short", "long"]
    learn(sort, long, *[1_800.0] * 5, start_up_s=30.0)
    learn(sort, replace(short, uid="other", namespace="elsewhere"), 1.0)
    sort, _ = plugin()
    learn(sort, long, *[1_800.0] * 5, start_up_s=30.0)
    assert sort.starts.group_of(long).latest_start_s(1_000.0) == 1_000.0 + HOUR_S - 1_830.0


def test_an_impossible_deadline_is_worth_no_more_than_now() -> None:
    sort, _ = plugin()
    learn(sort, pod(owner=JOB), 7_200.0)
    assert ordered(sort, pod("impossible", deadline="1s", created_s=5_000.0, owner=JOB), pod("old")) == [
        "old",
        "impossible",
    ]


@given(st.lists(st.tuples(st.floats(0, 1e5), st.sampled_from(["", "1s", "2h", "9h"])), min_size=1, max_size=20))
def test_a_pod_without_a_deadline_is_overtaken_only_by_those_created_within_max_wait(
    pods: list[tuple[float, str]],
) -> None:
    sort, _ = plugin(maxWait="1h")
    waiting = pod("waiting", created_s=10_000.0)
    mine = sort.sort_key(QueuedPod(waiting, 5.0))
    for number, (created_s, deadline) in enumerate(pods):
        other = pod(f"other-{number}", created_s=created_s, deadline=deadline)
        if created_s > waiting.created_s + HOUR_S + 1.0:
            assert sort.sort_key(QueuedPod(other, 5.0)) > mine


def test_run_times_do_not_shorten_max_wait() -> None:
    sort, _ = plugin(maxWait="10m")
    learn(sort, pod(owner=JOB), 7_200.0)
    assert sort.starts.group_of(pod(owner=JOB)).latest_start_s(1_000.0) == 1_600.0


def test_a_partly_placed_gang_goes_first() -> None:
    sort, _ = plugin()
    waiting, soon = pod("gang"), pod("soon", deadline="1s")
    assert sort.sort_key(QueuedPod(waiting, -1.0)) < sort.sort_key(QueuedPod(soon, 5.0))


def test_a_job_that_is_seen_late_moves_its_pods_once() -> None:
    sort, objects = plugin()
    member = pod(owner=JOB)
    before = sort.sort_key(QueuedPod(member, 5.0))
    objects.found[Job, "default", "j"] = Job(
        name="j", namespace="default", uid="job-uid", started_s=1_000.0, active_deadline_s=30
    )
    objects.number += 1
    assert sort.starts.has_changed()
    assert [key is not None for key in sort.starts.changed()] == [True]
    assert sort.sort_key(QueuedPod(member, 5.0)) < before
    assert not sort.starts.has_changed()
    assert [key is not None for key in sort.starts.changed()] == [False]


def test_a_burst_of_one_job_is_one_group() -> None:
    sort, _ = plugin()
    first = pod(owner=JOB)
    for number in range(50):
        sort.sort_key(QueuedPod(replace(first, uid=str(number), name=str(number)), 5.0))
    assert len(sort.starts) == 1


def test_pods_of_all_jobs_of_a_cron_job_share_run_times() -> None:
    by_cron = Owner("CronJob", "settle", "c")
    sort, _ = plugin(Job(name="settle-1", namespace="default", uid="a", owner=by_cron))
    assert sort.starts.run_key_of(pod(owner=Owner("Job", "settle-1", "a"))).owner == "CronJob/settle"
    assert sort.starts.run_key_of(pod(owner=Owner("Job", "settle-29406121", "gone"))).owner == "CronJob/settle"
    assert sort.starts.run_key_of(pod(owner=Owner("Job", "import-2", "gone"))).owner == "Job/import-2"


def test_a_sandbox_has_the_run_times_of_the_program() -> None:
    sort, other = plugin()[0], plugin()[0]
    learn(sort, pod(owner=JOB), 60.0)
    other.import_state(sort.export_state())
    assert other.starts.group_of(pod(owner=JOB)).prediction.p90_s == 60.0


# -- waits -----------------------------------------------------------------------------------------------------------------

ONE = Room(1_000, 1, 1)


def waiting(uid: str, room: Room = ONE, run_s: float | None = 10.0, deadline_s: float | None = None) -> WaitingPod:
    return WaitingPod(uid, room, run_s, 2 * (run_s or 0.0), deadline_s)


def test_pods_start_as_running_and_earlier_ones_end() -> None:
    running = [RunningPod(ONE, 4.0), RunningPod(ONE, 7.0), RunningPod(ONE, None)]
    found = predict_waits([Pool(ONE)], running, [waiting(name) for name in "abcd"])
    assert [found[name].start_s for name in "abcd"] == [0.0, 4.0, 7.0, 10.0]


def test_a_deadline_is_at_risk_if_the_p90_ends_after_it() -> None:
    pods = [waiting("meets", deadline_s=20.0), waiting("late", deadline_s=29.0), waiting("free")]
    found = predict_waits([Pool(ONE)], [], pods)
    assert [found[name].is_at_risk for name in ("meets", "late", "free")] == [False, True, False]
    assert found["late"].end_s == 30.0


def test_no_known_end_is_no_predicted_start() -> None:
    found = predict_waits([Pool(Room(0, 0, 0))], [RunningPod(ONE, None)], [waiting("a", deadline_s=5.0), waiting("b")])
    assert [(one.start_s, one.is_at_risk) for one in found.values()] == [(None, True), (None, False)]


def test_a_pod_that_leaves_because_it_is_late_delays_none_behind_it() -> None:
    running = [RunningPod(Room(1, 0, 0), left_s) for left_s in (4.0, 9.0)]
    large = Room(2, 0, 0)
    late = waiting("late", large, deadline_s=5.0)
    behind = [waiting("behind", Room(1, 0, 0)), waiting("last", large)]
    found = predict_waits([Pool(Room(0, 0, 0))], running, [late._replace(leaves_if_late=True), *behind])
    assert [(found[name].start_s) for name in ("late", "behind", "last")] == [9.0, 4.0, 14.0]
    found = predict_waits([Pool(Room(0, 0, 0))], running, [late, *behind])
    assert found["behind"].start_s == 19.0, "it waits behind a pod that stays"
    stuck = waiting("stuck", Room(9, 0, 0), deadline_s=5.0)._replace(leaves_if_late=True)
    found = predict_waits([Pool(Room(0, 0, 0))], running, [stuck, *behind])
    assert (found["stuck"].start_s, found["behind"].start_s) == (None, 4.0)


def test_pods_start_as_the_rate_of_a_unit_allows_if_own_nodes_are_full() -> None:
    pools = [Pool(ONE), Pool(Room(10**6, 10**12, 100), tokens=2, per_second=0.5)]
    pods = [waiting(str(number), run_s=50.0) for number in range(6)]
    found = predict_waits(pools, [RunningPod(ONE, 3.0)], pods)
    assert [one.start_s for one in found.values()] == [0.0, 0.0, 0.0, 2.0, 3.0, 4.0], (
        "own, two tokens, 2 s each; own again"
    )


def test_unit_that_accepts_no_pods_starts_none_and_its_quota_limits_them() -> None:
    pods = [waiting(str(number), run_s=None) for number in range(3)]
    closed = Pool(Room(10**6, 10**12, 100), tokens=0, per_second=0)
    assert [one.start_s for one in predict_waits([closed], [], pods).values()] == [None] * 3
    small = Pool(Room(10**6, 10**12, 2), tokens=9, per_second=1.0)
    running = [RunningPod(ONE, 7.0, 1)]
    starts = [one.start_s for one in predict_waits([closed, small], running, pods).values()]
    assert starts == [0.0, 0.0, 7.0], "room of an ended pod is in its own pool"


LEFT = st.one_of(st.none(), st.floats(0, 100))


@given(st.lists(LEFT, max_size=12), st.lists(st.integers(1, 4), max_size=12), st.integers(0, 4))
def test_starts_never_overtake_and_the_pool_is_never_overfull(
    left: list[float | None], sizes: list[int], free: int
) -> None:
    pods = [waiting(str(n), Room(size, 0, 0), 5.0) for n, size in enumerate(sizes)]
    found = [
        predict_waits([Pool(Room(free, 0, 0))], [RunningPod(Room(1, 0, 0), one) for one in left], pods)[p.uid].start_s
        for p in pods
    ]
    known = [one for one in found if one is not None]
    assert known == sorted(known)
    assert found[: len(known)] == known
    for moment in known:
        used = sum(
            size
            for size, start in zip(sizes, found, strict=True)
            if start is not None and start <= moment < start + 5.0
        )
        assert used <= free + sum(one is not None and one <= moment for one in left)
