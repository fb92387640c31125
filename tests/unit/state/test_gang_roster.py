"""The roster of gangs: who counts, who does not, and what is wrong with a gang."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from multisched.model.gang import (
    ACK_MIN,
    ACK_NAME,
    KOORDINATOR,
    LEVELS_MAX,
    SIGS_LABEL,
    SP_LABEL,
    TOPOLOGY_ANNOTATION,
    GangApi,
    GangSpec,
)
from multisched.model.objects import Owner, Pod, PodSpec
from multisched.state import gang_roster
from multisched.state.gang_roster import Gang, GangRoster
from multisched.state.gang_roster_state import gang_state, restore_gang_state


def member(name: str, least: int = 2, *, gang: str = "g", scheduler: str = "ours") -> Pod:
    labels = {ACK_NAME: gang, ACK_MIN: str(least)}
    return Pod("team", name, f"uid-{name}", 1, PodSpec(scheduler_name=scheduler), labels=labels)


def once(name: str, least: int = 2, run: str = "") -> Pod:
    """Of a gang that starts once. `run`: uid of the Job that owns it."""
    notes = {f"{KOORDINATOR}name": "g", f"{KOORDINATOR}min-available": str(least)}
    owner = Owner("Job", "job", run) if run else None
    return Pod("team", name, f"uid-{name}", 1, annotations=notes, owner=owner)


def together(name: str, gang: str) -> Pod:
    notes = {f"{KOORDINATOR}name": gang, f"{KOORDINATOR}min-available": "1", f"{KOORDINATOR}groups": '["x", "y"]'}
    return Pod("team", name, f"uid-{name}", 1, annotations=notes)


def roster_of(*pods: Pod) -> GangRoster:
    roster = GangRoster()
    for pod in pods:
        roster.set(pod)
    return roster


def the(roster: GangRoster, key: str = "team/g") -> Gang:
    gang = roster.gang(key)
    assert gang is not None
    return gang


def test_placed_and_finished_members_count() -> None:
    roster = roster_of(*(member(name, 3) for name in "abc"))
    assert the(roster).needs == 3
    roster.set_member_node("uid-a", "node")
    roster.set_member_node("uid-a", "node")
    assert the(roster).needs == 2
    roster.finish(member("b", 3))
    assert the(roster).needs == 1
    roster.set_member_node("uid-a", "")
    assert the(roster).needs == 2


def of_job(name: str, run: str, least: int = 2) -> Pod:
    return replace(member(name, least), owner=Owner("Job", "train", run))


def test_finished_members_count_while_the_gang_has_no_pods() -> None:
    """KAI#1968: the survivors' successors would wait for ever."""
    roster = roster_of(of_job("a", "run"), of_job("b", "run"))
    roster.finish(of_job("a", "run"))
    roster.remove("uid-b")
    roster.set(of_job("b2", "run"))
    assert the(roster).needs == 1
    roster.on_finished_deleted("team/a")
    assert the(roster).needs == 1
    roster.remove("uid-b2")
    assert len(roster) == 0
    assert roster.statistics() == {"gangs": 0, "members": 0, "finished": 0}


def test_member_counts_once_after_repeated_and_late_events() -> None:
    """Assumed, confirmed, told anew, finished, and told once more by a watch that lags: one member."""
    roster = roster_of(member("a", 3), member("b", 3))
    for _ in range(2):
        roster.set_member_node("uid-a", "n")
    for _ in range(2):
        roster.set_member_node("uid-a", "n", is_bound=True)
        roster.set(member("a", 3))
    assert (the(roster).placed_count, the(roster).bound, the(roster).needs) == (1, 1, 2)
    for _ in range(2):
        roster.finish(member("a", 3))
        roster.set(member("a", 3))
        roster.set_member_node("uid-a", "n", is_bound=True)
    assert (the(roster).placed_count, list(the(roster).members), list(the(roster).finished)) == (
        0,
        ["uid-b"],
        ["uid-a"],
    )
    assert the(roster).needs == 2


def test_finished_members_of_an_earlier_run_do_not_count() -> None:
    """A Job that is made again under its name has another uid."""
    roster = roster_of(*(of_job(name, "run-1") for name in "ab"))
    for name in "ab":
        roster.set_member_node(f"uid-{name}", "n", is_bound=True)
        roster.finish(of_job(name, "run-1"))
    assert (the(roster).succeeded, the(roster).has_started) == (2, True)
    roster.set(of_job("c", "run-2"))
    assert (the(roster).succeeded, the(roster).needs, the(roster).has_started) == (0, 2, False)
    assert roster.why_not_yet("team/g") == "gang team/g: waits until 2 members are there"
    roster.set(of_job("d", "run-2"))
    assert (the(roster).needs, roster.why_not_yet("team/g")) == (2, "")
    roster.set_member_node("uid-c", "n", is_bound=True)
    assert the(roster).surplus == 0


def test_finished_members_without_an_owner_count_if_the_server_still_has_them() -> None:
    heard = list[str]()
    roster = roster_of(member("a"), member("b"))
    roster.finish(member("a"))
    assert the(roster).needs == 1
    roster.on_change = heard.append
    roster.on_finished_deleted("team/a")
    assert (the(roster).needs, heard) == (2, ["team/g"])


def test_a_copy_of_a_roster_counts_the_same_finished_members() -> None:
    def listed() -> GangRoster:
        return roster_of(of_job("c", "run-2", 3), of_job("d", "run-2", 3))

    roster, copy = listed(), listed()
    for pod in (of_job("a", "run-1", 3), of_job("b", "run-2", 3)):
        roster.finish(pod)
        roster.on_finished_deleted(pod.key)
    restore_gang_state(copy, gang_state(roster))
    assert [(the(one).succeeded, the(one).needs) for one in (roster, copy)] == [(1, 2)] * 2


def test_recreated_pod_is_another_member_than_the_finished_one() -> None:
    roster = roster_of(member("a", 3), member("b", 3))
    roster.finish(member("a", 3))
    roster.set(replace(member("a", 3), uid="uid-again"))
    assert (the(roster).present, the(roster).needs) == (3, 2)
    roster.on_finished_deleted("team/a")
    assert the(roster).needs == 3
    roster.finish(replace(member("a", 3), uid="uid-again"))
    assert the(roster).needs == 2


def test_unfinished_member_of_a_restored_backup_counts_as_running() -> None:
    roster = roster_of(member("a", 3), member("b", 3))
    roster.finish(member("a", 3))
    roster.on_finished_deleted("team/a")
    roster.set(member("a", 3))
    assert (the(roster).present, len(the(roster).finished), the(roster).needs) == (2, 0, 3)


def test_gang_started_once_when_its_minimum_is_bound_not_assumed() -> None:
    """What a transaction assumes may be taken back."""
    roster = GangRoster()
    for name in "ab":
        roster.set(once(name))
        roster.set_member_node(f"uid-{name}", "n")
    for name in "ab":
        roster.set_member_node(f"uid-{name}", "")
    assert the(roster).needs == 2
    for name in "ab":
        roster.set_member_node(f"uid-{name}", "n")
        roster.set_member_node(f"uid-{name}", "n", is_bound=True)
    roster.remove("uid-a")
    assert the(roster).needs == 0


def test_gang_with_a_running_member_has_started_before_this_process() -> None:
    roster = GangRoster()
    roster.set(once("a"))
    roster.set_member_node("uid-a", "n", is_bound=True)
    assert the(roster).needs == 0


@pytest.mark.parametrize("make", [member, once])
def test_members_being_deleted_do_not_count(make: Callable[[str], Pod]) -> None:
    roster, heard = GangRoster(), list[str]()
    for name in "ab":
        roster.set(make(name))
        roster.set_member_node(f"uid-{name}", "n", is_bound=True)
    roster.on_change = heard.append
    roster.set(replace(make("a"), is_deleting=True))
    assert (the(roster).needs, heard) == (0 if make is once else 1, ["team/g"])
    roster.set(replace(make("b"), is_deleting=True))
    assert (the(roster).needs, the(roster).has_started, heard[-1:]) == (2, False, ["team/g"])
    roster.set(make("c"))
    why = "gang team/g: waits until 2 members are there, not counting 2 that are being deleted"
    assert roster.why_not_yet("team/g") == why
    roster.set(make("d"))
    assert (roster.why_not_yet("team/g"), the(roster).needs) == ("", 2)


def test_started_gang_with_one_remaining_member_stays_started() -> None:
    roster = GangRoster()
    for name in "ab":
        roster.set(once(name))
        roster.set_member_node(f"uid-{name}", "n", is_bound=True)
    roster.set(replace(once("a"), is_deleting=True))
    roster.remove("uid-a")
    assert the(roster).needs == 0
    roster.remove("uid-b")
    roster.set(once("c"))
    assert the(roster).needs == 2


@pytest.mark.parametrize("is_told_first", [True, False], ids=["finished first", "gone first"])
@pytest.mark.parametrize("waiting", ["", "d"], ids=["nobody waits", "one waits"])
def test_last_member_that_succeeds_keeps_its_gang_started(waiting: str, *, is_told_first: bool) -> None:
    """The watch of running pods does not show how a pod ended, and may be ahead of the watch of succeeded pods."""
    roster = GangRoster()
    for name in "abc":
        roster.set(once(name, 3, "run-1"))
        roster.set_member_node(f"uid-{name}", "n", is_bound=True)
    roster.remove("uid-a")
    roster.remove("uid-c")
    for name in waiting:
        roster.set(once(name, 3, "run-1"))
    if is_told_first:
        roster.finish(once("b", 3, "run-1"))
    roster.remove("uid-b")
    roster.finish(once("b", 3, "run-1"))
    roster.set(once("e", 3, "run-1"))
    assert (the(roster).succeeded, the(roster).needs) == (1, 0)


@pytest.mark.parametrize("run", ["run-2", ""])
def test_late_success_of_an_earlier_run_does_not_start_a_new_one(run: str) -> None:
    roster = GangRoster()
    for name in "ab":
        roster.set(once(name, run="run-1"))
        roster.set_member_node(f"uid-{name}", "n", is_bound=True)
        roster.remove(f"uid-{name}")
    roster.set(once("c", run=run))
    roster.finish(once("b", run="run-1"))
    assert (the(roster).has_started, the(roster).needs) == (False, 2)


def test_success_of_a_member_that_never_ran_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor that of one that left longer ago than is remembered."""
    monkeypatch.setattr(gang_roster, "DEPARTED_MAX", 1)
    roster = GangRoster()
    for name in "abcd":
        roster.set(once(name))
    for name in "bc":
        roster.set_member_node(f"uid-{name}", "n", is_bound=True)
    for name in "abc":
        roster.remove(f"uid-{name}")
    for name in "ab":
        roster.finish(once(name))
        assert not the(roster).has_started
    roster.finish(once("c"))
    assert the(roster).has_started


def test_gang_is_not_overdue_at_once_after_it_loses_a_member_again() -> None:
    roster = roster_of(member("a"), member("b"))
    roster.note_overdue("team/g")
    roster.note_refusal("team/g", "no room")
    for uid in ("uid-a", "uid-b"):
        roster.set_member_node(uid, "n")
    roster.remove("uid-b")
    assert roster.why_not_yet("team/g") == "gang team/g: waits until 2 members are there"
    assert not the(roster).refusal


def test_linked_gangs_share_the_limit_of_topology_levels() -> None:
    """Each of them is looked at in one attempt: 32 gangs of 8 would keep all others waiting."""

    def of(name: str, *keys: str) -> Pod:
        pod = together(name, name)
        return replace(pod, annotations={**pod.annotations, TOPOLOGY_ANNOTATION: ",".join(keys)})

    keys = [f"level-{at}" for at in range(LEVELS_MAX)]
    assert not roster_of(of("x", *keys), of("y", *keys)).why_not_yet("team/x")
    why = roster_of(of("x", *keys), of("y", "one-more")).why_not_yet("team/x")
    assert why == "gang team/x: names 9 topology levels with those it starts with; 8 is the most"


def test_gang_object_listed_after_running_members_means_started() -> None:
    """Kinds are listed side by side when we start: whichever comes first, the gang is the same."""

    def of(name: str) -> Pod:
        return Pod("team", name, f"uid-{name}", 1, labels={SIGS_LABEL: "g"})

    def started(*, object_first: bool) -> Gang:
        roster, spec = GangRoster(), GangSpec(2, is_once=True)
        if object_first:
            roster.set_object(GangApi.SIGS, "team/g", spec)
        for name in "ab":
            roster.set(of(name))
            roster.set_member_node(f"uid-{name}", "n", is_bound=True)
        if not object_first:
            roster.set_object(GangApi.SIGS, "team/g", spec)
        roster.remove("uid-a")
        return the(roster)

    gangs = started(object_first=True), started(object_first=False)
    assert [(gang.has_started, gang.needs) for gang in gangs] == [(True, 0)] * 2


def test_lowered_minimum_that_running_members_meet_means_started() -> None:
    roster = GangRoster()
    roster.set_object(GangApi.SCHEDULER_PLUGINS, "team/g", GangSpec(3))
    roster.set(Pod("team", "a", "uid-a", 1, labels={SP_LABEL: "g"}))
    roster.set_member_node("uid-a", "n", is_bound=True)
    assert not the(roster).has_started
    roster.set_object(GangApi.SCHEDULER_PLUGINS, "team/g", GangSpec(1))
    assert the(roster).has_started


def test_gangs_are_separate_and_linked_gangs_are_notified() -> None:
    roster, heard = GangRoster(), list[str]()
    roster.on_change = heard.append
    roster.set(together("a", "x"))
    assert roster.why_not_yet("team/x") == "gang team/x: starts with gang team/y, which has no members"
    heard.clear()
    roster.set(together("b", "y"))
    assert "team/x" in heard, "it waited for this one"
    assert roster.why_not_yet("team/x") == roster.why_not_yet("team/y") == ""
    roster.remove("uid-b")
    assert roster.why_not_yet("team/x").endswith("which has no members")


def test_members_held_by_a_paused_attempt_do_not_count_as_started() -> None:
    roster = roster_of(member("a"), member("b"))
    roster.set_member_node("uid-a", "n", is_tentative=True)
    assert the(roster).needs == 2, "the attempt may take it back"
    roster.set_member_node("uid-a", "n")
    assert the(roster).needs == 1


def test_linked_gangs_are_notified_when_one_loses_a_member() -> None:
    roster, heard = roster_of(together("a", "x"), together("b", "y")), list[str]()
    roster.on_change = heard.append
    roster.remove("uid-b")
    assert sorted(set(heard)) == ["team/x", "team/y"]


def test_leaving_members_do_not_count_as_bound() -> None:
    roster = roster_of(member("a"), member("b"))
    for uid in ("uid-a", "uid-b"):
        roster.set_member_node(uid, "n", is_bound=True)
    roster.set_victim("uid-a", is_victim=True)
    assert (the(roster).bound, the(roster).lacks) == (1, 1)
    roster.set(replace(member("b"), is_deleting=True))
    assert (the(roster).bound, the(roster).lacks) == (0, 2)


def test_later_version_of_a_victim_leaves_it_a_victim() -> None:
    roster = roster_of(member("a"), member("b"))
    for uid in ("uid-a", "uid-b"):
        roster.set_member_node(uid, "n", is_bound=True)
    roster.set_victim("uid-a", is_victim=True)
    roster.set(replace(member("a"), phase="Running"))
    assert roster.placed_members("team/g") == ["uid-b"]


def test_gang_waits_for_its_pod_group_object() -> None:
    roster = GangRoster()
    pod = Pod("team", "p", "uid-p", 1, labels={SP_LABEL: "g"})
    roster.set(pod)
    missing = "PodGroup team/g of scheduling.x-k8s.io is missing; create it"
    assert the(roster).problem == missing
    heard: list[str] = []
    roster.on_change = heard.append
    roster.set_object(GangApi.SCHEDULER_PLUGINS, "team/g", GangSpec(1))
    assert (the(roster).problem, the(roster).needs, heard) == ("", 1, ["team/g"])
    roster.set_object(GangApi.SCHEDULER_PLUGINS, "team/g", None, "minMember is 0; write 1 or more")
    assert the(roster).problem == "minMember is 0; write 1 or more"
    roster.set_object(GangApi.SCHEDULER_PLUGINS, "team/g", None)
    assert the(roster).problem == missing


def test_members_report_why_their_pod_group_is_unknown() -> None:
    roster = GangRoster()
    roster.set(Pod("team", "p", "uid-p", 1, labels={SP_LABEL: "g"}))
    roster.set(Pod("team", "q", "uid-q", 1, labels={SIGS_LABEL: "h"}))
    heard: list[str] = []
    roster.on_change = heard.append
    roster.note_kind(GangApi.SCHEDULER_PLUGINS, "its CRD is not installed")
    roster.note_kind(GangApi.SCHEDULER_PLUGINS, "its CRD is not installed")
    why = "gang team/g: PodGroup team/g of scheduling.x-k8s.io is missing: its CRD is not installed"
    assert (heard, roster.why_not_yet("team/g")) == (["team/g"], why)
    assert (
        roster.why_not_yet("team/h") == "gang team/h: PodGroup team/h of scheduling.sigs.k8s.io is missing; create it"
    )
    copy = roster_of(Pod("team", "p", "uid-p", 1, labels={SP_LABEL: "g"}))
    restore_gang_state(copy, gang_state(roster))
    assert copy.why_not_yet("team/g") == why
    roster.note_kind(GangApi.SCHEDULER_PLUGINS, "")
    assert (heard[1:], roster.why_not_yet("team/g").endswith("; create it")) == (["team/g"], True)


def test_pod_group_listed_before_its_members_applies() -> None:
    roster = GangRoster()
    roster.set_object(GangApi.SCHEDULER_PLUGINS, "team/g", GangSpec(4))
    roster.set(Pod("team", "p", "uid-p", 1, labels={SP_LABEL: "g"}))
    assert the(roster).needs == 4


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ([member("b", 3)], "its members ask for minimums of 2 and 3; write the same in all of them"),
        (
            [member("b", scheduler="theirs")],
            "its members name the schedulers ours and theirs; write the same in all of them",
        ),
        ([member("b")], ""),
    ],
)
def test_contradicting_members_are_reported(others: list[Pod], words: str) -> None:
    assert the(roster_of(member("a"), *others)).problem == words


def test_contradiction_ends_when_the_contradicting_member_is_deleted() -> None:
    roster = roster_of(member("a"), member("b", 3))
    roster.remove("uid-b")
    assert the(roster).problem == ""


def test_pod_that_changes_its_gang_leaves_the_old_one() -> None:
    roster = roster_of(member("a"))
    roster.set(member("a", gang="other"))
    assert roster.gang("team/g") is None
    assert the(roster, "team/other").needs == 2
    roster.set(Pod("team", "a", "uid-a", 2))
    assert len(roster) == 0


class Known(NamedTuple):
    """A member as the test knows it."""

    key: str
    is_placed: bool = False
    is_gated: bool = False
    is_leaving: bool = False


@pytest.mark.parametrize("seed", range(20))
def test_counts_equal_a_recount_of_all_members(seed: int) -> None:
    rng, roster = random.Random(seed), GangRoster()
    known: dict[str, Known] = {}
    finished: dict[str, set[str]] = {"team/g": set(), "team/h": set()}
    for number in range(300):
        step = rng.choice(("add", "add", "change", "stand", "leave", "remove", "finish"))
        if step == "add":
            known[f"uid-p{number}"] = see(
                roster, f"p{number}", Known(f"team/{rng.choice('gh')}", is_gated=number % 4 == 0)
            )
        elif known:
            uid = rng.choice(sorted(known))
            one, name = known[uid], uid.removeprefix("uid-")
            if step in ("stand", "leave"):
                roster.set_member_node(uid, "node" if step == "stand" else "")
                known[uid] = one._replace(is_placed=step == "stand")
            elif step == "change":
                known[uid] = see(roster, name, one._replace(is_gated=not one.is_gated, is_leaving=rng.random() < 0.5))
            elif step == "remove":
                roster.remove(uid)
                del known[uid]
            else:
                roster.finish(member(name, gang=one.key[-1]))
                del known[uid]
                finished[one.key].add(uid)
        for key in ("team/g", "team/h"):
            check_counts(roster, key, [one for one in known.values() if one.key == key], finished[key])


def see(roster: GangRoster, name: str, known: Known) -> Known:
    gates = ("gate",) if known.is_gated else ()
    roster.set(replace(member(name, gang=known.key[-1]), gates=gates, is_deleting=known.is_leaving))
    return known


def check_counts(roster: GangRoster, key: str, members: list[Known], finished: set[str]) -> None:
    gang = roster.gang(key)
    if gang is None:
        assert not members
        finished.clear()
        return
    held = sum(one.is_gated and not one.is_placed and not one.is_leaving for one in members)
    leaving = sum(one.is_leaving for one in members)
    staying = sum(one.is_placed and not one.is_leaving for one in members)
    assert (gang.placed_count, len(gang.placed_uids), set(gang.finished)) == (staying, staying, finished)
    assert (gang.held, gang.present) == (held, len(members) - leaving - held + len(finished))
    if members:  # each says that two start together
        assert gang.surplus == min(max(staying + len(finished) - 2, 0), staying)


def test_gang_messages_name_no_pods_of_other_namespaces() -> None:
    """Neither of a gang of the same name, nor of one that it names as its fellow."""
    roster = GangRoster()
    heard: list[str] = []

    def of(namespace: str, pod: str, gang: str, least: str, **more: str) -> Pod:
        said = {"name": gang, "min-available": least, **more}
        notes = {f"{KOORDINATOR}{key}": text for key, text in said.items()}
        return Pod(namespace, pod, f"{namespace}-{pod}", 1, PodSpec("ours"), annotations=notes)

    roster.set(of("here", "p", "g", "2"))
    roster.on_change = heard.append
    roster.set(of("there", "p", "g", "2"))
    assert (heard[:1], roster.why_not_yet("here/g")) == (["there/g"], "gang here/g: waits until 2 members are there")
    roster.set(of("here", "spy", "spy", "1", groups='["here/spy", "there/secret"]'))
    why = "gang here/spy: starts with gang there/secret, which is missing, cannot start yet, or names other gangs"
    assert roster.why_not_yet("here/spy") == why
    for pod, least in (("a", "7"), ("b", "0"), ("c", "3")):
        roster.set(of("there", pod, "secret", least))
        assert roster.why_not_yet("here/spy") == why


def test_waiting_members_are_notified_when_a_member_is_deleted() -> None:
    roster = roster_of(member("a"), member("b"))
    heard: list[str] = []
    roster.on_change = heard.append
    assert roster.why_not_yet("team/g") == ""
    roster.remove("uid-b")
    assert (heard, roster.why_not_yet("team/g")) == (["team/g"], "gang team/g: waits until 2 members are there")


def test_member_that_contradicts_its_pod_group_is_reported() -> None:
    roster = GangRoster()
    for name, least in (("a", 3), ("b", 2)):
        roster.set(replace(member(name, least), labels={ACK_NAME: "g", ACK_MIN: str(least), SP_LABEL: "g"}))
    roster.set_object(GangApi.SCHEDULER_PLUGINS, "team/g", GangSpec(3))
    assert the(roster).problem == (
        "its PodGroup asks for a minimum of 3, and its members for 2 and 3; write the same in both"
    )


def test_refusal_is_forgotten_once_enough_members_have_nodes() -> None:
    roster = roster_of(member("a"), member("b"))
    heard: list[str] = []
    roster.on_count = heard.append
    roster.note_refusal("team/g", "no room")
    roster.note_refusal("team/g", "no room")
    assert (the(roster).refusal, heard) == ("no room", ["team/g"]), "the same words again are no news"
    for name in ("a", "b"):
        roster.set_member_node(f"uid-{name}", "node")
    roster.set_member_node("uid-b", "")
    assert the(roster).refusal == ""
