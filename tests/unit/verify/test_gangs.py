"""What the judge says of gangs: who is of which, and that none is bound in part for longer than it may be."""

from __future__ import annotations

from typing import Any

import pytest

from multisched.verify.fields import Unreadable
from multisched.verify.gang_objects import duration_s, read_group, read_member
from multisched.verify.gangs import GangJudge
from tests.unit.verify.clusters import Document, Told, make_pod

ACK = "pod-group.scheduling.sigs.k8s.io/"
KOORDINATOR = "gang.scheduling.koordinator.sh/"


def member(name: str, node: str = "", *, gang: str = "g", minimum: str = "3", **fields: Any) -> Told:
    return make_pod(name, node, labels={f"{ACK}name": gang, f"{ACK}min-available": minimum}, **fields)


def group(minimum: int = 3, *, name: str = "g", version: str = "scheduling.x-k8s.io/v1alpha1", **spec: Any) -> Told:
    document = {"apiVersion": version, "metadata": {"name": name, "namespace": "default"}}
    return "PodGroup", {**document, "spec": {"minMember": minimum, **spec}}


def judge(*documents: Told) -> GangJudge:
    found = GangJudge()
    for kind, document in documents:
        found.add(kind, document)
    return found


@pytest.mark.parametrize(
    ("fields", "gang", "minimum"),
    [
        ({"labels": {"scheduling.x-k8s.io/pod-group": "g"}}, "g", None),
        ({"labels": {f"{ACK}name": "g", f"{ACK}min-available": "4"}}, "g", 4),
        ({"labels": {f"{ACK}name": "g"}}, "g", None),
        ({"annotations": {f"{KOORDINATOR}name": "g", f"{KOORDINATOR}min-available": "2"}}, "g", 2),
        ({"schedulingGroup": {"podGroupName": "g"}}, "g", None),
    ],
)
def test_gang_name_is_read_from_each_api(fields: Document, gang: str, minimum: int | None) -> None:
    found = read_member(make_pod("p", "", **fields)[1])

    assert found is not None
    assert (found.key, found.minimum) == (("default", gang), minimum)


def test_pod_without_gang_fields_belongs_to_no_gang() -> None:
    assert read_member(make_pod("p", "", labels={"app": "web"})[1]) is None


def test_timeout_and_gang_group_are_read_from_annotations() -> None:
    annotations = {
        f"{KOORDINATOR}name": "a",
        f"{KOORDINATOR}waiting-time": "1m30s",
        f"{KOORDINATOR}groups": '["default/a", "b"]',
    }

    found = read_member(make_pod("p", "", annotations=annotations)[1])

    assert found is not None
    assert (found.timeout_s, found.groups) == (90.0, (("default", "a"), ("default", "b")))


def test_two_apis_with_equal_content_are_one_gang() -> None:
    labels = {"scheduling.x-k8s.io/pod-group": "g", f"{ACK}name": "g", f"{ACK}min-available": "2"}

    found = read_member(make_pod("p", "", labels=labels)[1])

    assert found is not None
    assert found.minimum == 2


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"labels": {"scheduling.x-k8s.io/pod-group": "g", f"{ACK}name": "h"}}, "belongs to several gangs"),
        ({"labels": {f"{ACK}name": "g", f"{ACK}min-available": "0"}}, "'0' is not a number of members"),
        ({"labels": {f"{ACK}name": "g", f"{ACK}min-available": "few"}}, "'few' is not a number of members"),
        (
            {"annotations": {f"{KOORDINATOR}name": "g", f"{KOORDINATOR}waiting-time": "soon"}},
            "'soon' is not a duration",
        ),
        ({"annotations": {f"{KOORDINATOR}name": "g", f"{KOORDINATOR}groups": "g"}}, "'g' is not a JSON list"),
        ({"annotations": {f"{KOORDINATOR}name": "g", f"{KOORDINATOR}groups": "[1]"}}, "is not a JSON list of names"),
    ],
)
def test_unreadable_gang_is_reported_and_not_judged(fields: Document, said: str) -> None:
    pod = make_pod("p", "", **fields)

    with pytest.raises(Unreadable, match=said.replace("[", r"\[")):
        read_member(pod[1])
    assert said in judge(pod).problems["Pod default/p"]


def test_durations_are_read_in_go_format() -> None:
    assert duration_s("1h2m3.5s") == 3723.5
    assert duration_s("500ms") == 0.5
    with pytest.raises(Unreadable):
        duration_s("1 h")


def test_minimum_is_read_from_objects_of_both_apis() -> None:
    upstream = {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "metadata": {"name": "g"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 5}}},
    }

    assert read_group(upstream).minimum == 5
    assert read_group(group(4, scheduleTimeoutSeconds=30)[1]).timeout_s == 30
    with pytest.raises(Unreadable, match="a minimum of 0 members"):
        read_group(group(0)[1])


def partial(found: GangJudge, now_s: float) -> list[str]:
    return [state.key[1] for state in found.look(now_s)]


def test_partially_bound_gang_is_a_fault_only_after_its_timeout() -> None:
    found = judge(group(scheduleTimeoutSeconds=30), member("a", "n1"), member("b"), member("c"))

    assert partial(found, 0.0) == []
    assert partial(found, 30.0) == []
    assert partial(found, 30.5) == ["g"]
    found.add(*member("b", "n1"))
    assert partial(found, 31.0) == ["g"]
    found.add(*member("c", "n1"))
    assert partial(found, 32.0) == []


def test_longest_timeout_of_the_members_counts() -> None:
    def of(name: str, node: str, wait: str) -> Told:
        said = {"name": "g", "min-available": "3", "waiting-time": wait}
        return make_pod(name, node, annotations={f"{KOORDINATOR}{key}": text for key, text in said.items()})

    found = judge(of("a", "n1", "10s"), of("b", "", "60s"))

    assert [partial(found, at) for at in (0.0, 30.0, 61.0)] == [[], [], ["g"]]


def test_gang_that_reached_its_minimum_may_lose_members() -> None:
    pods = [member(name, "n1") for name in "abc"]
    found = judge(group(scheduleTimeoutSeconds=1), *pods)

    found.forget(*pods[0])
    found.add(*member("b", "n1", phase="Failed"))

    assert found.has_started(("default", "g"))
    assert [partial(found, at) for at in (0.0, 10.0)] == [[], []]


def of_job(told: Told, uid: str) -> Told:
    told[1]["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "train", "uid": uid, "controller": True}]
    return told


def test_members_that_succeeded_in_an_earlier_run_do_not_count() -> None:
    old = [of_job(member(name, "n1", phase="Succeeded"), "run-1") for name in "ab"]
    found = judge(*old, of_job(member("c", "n1"), "run-2"))
    assert found.state(("default", "g")).bound == {"uid-default-c"}
    found.forget(*of_job(member("c", "n1"), "run-2"))
    assert found.state(("default", "g")).bound == {"uid-default-a", "uid-default-b"}


def leaving(name: str) -> Told:
    kind, document = member(name, "n1")
    document["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return kind, document


def test_members_that_are_being_deleted_do_not_count() -> None:
    found = judge(*(member(name, "n1") for name in "abc"), member("d"))
    for name in "ab":
        found.add(*leaving(name))
    assert held(found, "d") == [], "c stays: the gang heals"
    found.add(*member("c", "n1"))
    assert found.has_started(("default", "g"))
    found.add(*leaving("c"))
    assert held(found, "d") == ["g"]
    assert found.state(("default", "g")).waiting == {"uid-default-d"}


def test_succeeded_members_count() -> None:
    found = judge(member("a", "n1", phase="Succeeded"), member("b", "n1"), member("c", "n1"))

    assert found.state(("default", "g")).is_whole


def test_failed_members_do_not_count() -> None:
    found = judge(member("a", "n1", phase="Failed"), member("b", "n1"), member("c", "n1"))

    assert [partial(found, at) for at in (0.0, 601.0)] == [[], ["g"]]


def test_gang_without_bound_members_is_no_fault() -> None:
    found = judge(member("a"), member("b"), member("c"))

    assert [partial(found, at) for at in (0.0, 10_000.0)] == [[], []]


def test_gang_without_a_known_minimum_is_not_judged() -> None:
    found = judge(make_pod("a", "n1", labels={"scheduling.x-k8s.io/pod-group": "g"}))

    assert [partial(found, at) for at in (0.0, 10_000.0)] == [[], []]


def test_equal_names_in_two_namespaces_are_two_gangs() -> None:
    found = judge(*(member(f"a{n}", "n1", namespace=space) for n, space in enumerate(("x", "x", "y"))))

    assert sorted(state.key for state in found.states()) == [("x", "g"), ("y", "g")]


def test_gang_starts_over_after_all_its_pods_were_deleted() -> None:
    pods = [member(name, "n1") for name in "abc"]
    found = judge(*pods)
    for pod in pods:
        found.forget(*pod)

    found.add(*member("d", "n1"))

    assert not found.has_started(("default", "g"))
    assert found.gang_of("uid-default-a") is None


def test_finished_members_of_another_owner_do_not_count() -> None:
    def of(run: str, name: str, node: str, phase: str = "Running") -> Told:
        kind, document = member(name, node, phase=phase)
        document["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "j", "uid": run, "controller": True}]
        return kind, document

    found = judge(of("1", "a", "n1", "Succeeded"), of("1", "b", "n1", "Succeeded"), of("2", "c", "n1"))
    assert found.state(("default", "g")).bound == {"uid-default-c"}

    found.add(*of("2", "d", "n1", "Succeeded"))
    assert found.state(("default", "g")).bound == {"uid-default-c", "uid-default-d"}


def held(found: GangJudge, *names: str) -> list[str]:
    return [state.key[1] for state in found.held_without_start([f"uid-default-{name}" for name in names])]


def test_resources_are_held_for_the_minimum_of_a_gang_or_not_at_all() -> None:
    found = judge(*(member(name) for name in "abcd"), make_pod("plain", ""))

    assert held(found, "a", "b") == ["g"]
    assert held(found, "a", "b", "c") == []
    assert held(found, "plain") == []


def test_bound_and_succeeded_members_count_with_held_ones() -> None:
    found = judge(member("a", "n1"), member("b", "n1", phase="Succeeded"), member("c"), member("d"))

    assert held(found, "c") == []


def test_started_gang_accepts_single_members() -> None:
    pods = [member(name, "n1") for name in "abc"]
    found = judge(*pods, member("d"))
    found.forget(*pods[0])

    assert held(found, "d") == []


def test_gang_is_judged_alone_after_its_linked_gang_has_started() -> None:
    def of(name: str, gang: str, node: str = "") -> Told:
        said = {"name": gang, "min-available": "2", "groups": '["g", "h"]'}
        return make_pod(name, node, annotations={f"{KOORDINATOR}{key}": text for key, text in said.items()})

    pods = [of("a", "g", "n1"), of("b", "g", "n1")]
    found = judge(*pods, of("c", "h"), of("d", "h"))
    found.forget(*pods[0])

    assert held(found, "c", "d") == []
    assert held(found, "c") == ["h"]
