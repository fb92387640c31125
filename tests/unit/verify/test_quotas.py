"""What the judge says of trees of quotas: their rules, their sums, levels over their max, statuses that are not so."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from multisched.verify.fields import Unreadable
from multisched.verify.quota_tree import read_tree
from multisched.verify.quotas import QuotaJudge, quota_requests
from tests.unit.verify.clusters import Document, make_pod
from tests.unit.verify.quota_documents import cpus, level, manual, tree, tree_document


def test_tree_of_the_manual_is_valid() -> None:
    read = tree(manual())

    assert [one.path for one in read.levels_of("namespace3")] == ["root.b.1", "root.b", "root"]
    assert read.leaf_of("default") is None
    assert dict(read.root.max) == {"cpu": 40_000}


LEAF = level("a", 1, 2, namespaces=("x",))


@pytest.mark.parametrize(
    ("root", "said"),
    [
        (level("root", 2, 2, level("a", 3, 2)), "root.a: min 3000 cpu is over max 2000"),
        (level("root", 2, 2, LEAF, level("b", 2, 2)), "root: its children's min are 3000 cpu, and its own is 2000"),
        (level("root", 2, 2, level("a", 1, 3)), "root.a: max 3000 cpu is over its parent's 2000"),
        (level("root", 2, 2, LEAF, level("a", 1, 2)), "a: the name of 2 levels"),
        (level("root", 2, 2, LEAF, level("b", 1, 2, namespaces=("x",))), "namespace x is listed 2 times"),
        (level("root", 2, 2, LEAF, namespaces=("y",)), "root: namespaces at a level that has children"),
        (level("root", 2, 3, LEAF), "root: min and max of the root differ in cpu"),
        (level("root", {}, {"cpu": 0}, LEAF), "root: min and max of the root differ in cpu"),
        (level("root", {"cpu": 0}, {}, LEAF), "root: min and max of the root differ in cpu"),
        (level("root", 2, 2, level("a", {"cpu": "a lot"}, 2)), "root.a: min.cpu: 'a lot' is not a quantity"),
        (level("root", 2, 2, level("a", {"cpu": "-1"}, 2)), "root.a: min.cpu: '-1' is below 0"),
        (level("root", 2, 2, level("a", {"gpus": "1"}, 2)), "root.a: min: gpus is not a resource of pods"),
        (level("root", 2, 2, level("a", 1, {"a.b/c": "1.5m"})), "root.a: max: a.b/c is not a whole number"),
        (level("root", 2, 2, level("a", 1, 2, namespaces=("Team",))), "namespace 'Team' is not a valid name"),
        (level("root", 2, 2, level("", 1, 2)), "root: a level without a name"),
        ({}, "spec.root: is missing"),
        (level("root", 2, 2, {**LEAF, "children": "a"}), "root.a: children: 'a' is not a list"),
    ],
)
def test_violation_is_reported_with_its_path(root: Document, said: str) -> None:
    with pytest.raises(Unreadable) as raised:
        read_tree(tree_document(root))

    assert said in str(raised.value)


def test_kube_queue_key_is_no_resource() -> None:
    assert "kube-queue/max-jobs" not in tree(level("root", 2, {"cpu": "2", "kube-queue/max-jobs": "3"})).root.max


def test_too_many_levels_are_refused() -> None:
    root = level("leaf", 1, 1)
    for number in range(40):
        root = level(f"level-{number}", 1, 1, root)

    with pytest.raises(Unreadable, match="more than 32 levels"):
        read_tree(tree_document(root))


def judge(*documents: tuple[str, Document]) -> QuotaJudge:
    found = QuotaJudge()
    for kind, document in documents:
        found.add(kind, document)
    return found


def pods_of_5_cpu(namespace: str, count: int, **fields: Any) -> list[tuple[str, Document]]:
    return [
        make_pod(f"{namespace}-{number}", "n1", namespace=namespace, requests={"cpu": "5"}, **fields)
        for number in range(count)
    ]


MANUAL = ("ElasticQuotaTree", tree_document(manual()))


def test_pods_count_at_every_level_above_them() -> None:
    found = judge(
        MANUAL, *pods_of_5_cpu("namespace1", 3), *pods_of_5_cpu("namespace2", 2), *pods_of_5_cpu("other", 9)
    ).usage()
    assert found is not None

    sums = {one.name: found.of(one)["cpu"] for one in found.tree.root.below()}

    assert sums == {"root": 25_000, "root.a": 25_000, "root.a.1": 15_000, "root.a.2": 10_000} | dict.fromkeys(
        ("root.b", "root.b.1", "root.b.2"), 0
    )


def test_level_over_its_max_is_reported_with_both_amounts() -> None:
    found = judge(MANUAL, *pods_of_5_cpu("namespace1", 5))

    assert [str(one) for one in found.excesses()] == ["root.a.1 holds 25000 of at most 20000 cpu"]


def test_placement_is_judged_without_unknown_pods() -> None:
    found = judge(MANUAL, *pods_of_5_cpu("namespace1", 5))

    assert found.placement("uid-namespace1-namespace1-0")
    assert not found.placement("uid-namespace1-namespace1-0", unknown=["uid-namespace1-namespace1-4"])
    assert not found.placement("uid-nobody")


def test_pod_that_requests_no_exceeded_resource_is_no_violation() -> None:
    late = make_pod("late", "n1", namespace="namespace1", requests={"memory": "1Gi"})
    found = judge(MANUAL, *pods_of_5_cpu("namespace1", 5), late)

    assert not found.placement("uid-namespace1-late")


def test_pending_finished_and_deleted_pods_use_no_quota() -> None:
    waiting = make_pod("waiting", "", namespace="namespace1", requests={"cpu": "5"})
    gone = make_pod("gone", "n1", namespace="namespace1", requests={"cpu": "5"})
    found = judge(MANUAL, *pods_of_5_cpu("namespace1", 4), waiting, gone)
    found.forget(*gone)
    found.add(*make_pod("namespace1-0", "n1", namespace="namespace1", requests={"cpu": "5"}, phase="Succeeded"))

    usage = found.usage()

    assert usage is not None
    assert usage.of(usage.tree.root) == {**cpus(15), "pods": 3}


def test_each_pod_uses_one_of_the_resource_pods() -> None:
    root = level("root", {"pods": "2"}, {"pods": "2"}, namespaces=("x",))
    found = judge(("ElasticQuotaTree", tree_document(root)), *pods_of_5_cpu("x", 3))

    assert [str(one) for one in found.excesses()] == ["root holds 3 of at most 2 pods"]


def test_unreadable_pod_is_reported_and_not_counted() -> None:
    found = judge(MANUAL, make_pod("odd", "n1", namespace="namespace1", requests={"cpu": "much"}))

    assert "'much' is not a quantity" in found.problems["namespace1/odd"]
    assert not found.pods


def test_invalid_tree_is_reported_and_the_last_valid_one_stays_in_force() -> None:
    found = judge(MANUAL)
    found.add("ElasticQuotaTree", tree_document(level("root", 2, 1)))

    assert found.tree is not None
    assert found.tree.root.max == cpus(40)
    assert "min 2000 cpu is over max 1000" in found.problems["tree"]

    found.add("ElasticQuotaTree", tree_document(level("root", 2, 2)))
    assert found.tree.root.max == cpus(2)
    assert not found.problems


def test_last_valid_tree_is_read_from_the_status_of_an_invalid_one() -> None:
    found, broken = QuotaJudge(), level("root", 2, 2, level("a", 3, 2))
    found.add("ElasticQuotaTree", {**tree_document(broken), "status": {"lastGood": {"root": broken}}})
    assert found.tree is None
    found.add("ElasticQuotaTree", {**tree_document(broken), "status": {"lastGood": {"root": level("root", 5, 5)}}})
    assert found.tree is not None
    assert dict(found.tree.root.max) == {"cpu": 5_000}
    found.add("ElasticQuotaTree", {**tree_document(broken), "status": {"lastGood": {"root": level("root", 6, 6)}}})
    assert dict(found.tree.root.max) == {"cpu": 5_000}, "what is in force stays so"
    assert found.problems


def test_only_the_first_tree_in_the_right_namespace_counts() -> None:
    elsewhere, second = tree_document(level("root", 1, 1)), tree_document(level("root", 2, 2), "second")
    elsewhere["metadata"]["namespace"] = "default"
    found = judge(("ElasticQuotaTree", elsewhere))
    assert found.tree is None
    found.add(*MANUAL)
    found.add("ElasticQuotaTree", second)
    assert found.tree is not None
    assert found.tree.root.max == cpus(40)

    found.forget(*MANUAL)

    assert found.tree.root.max == cpus(2)


def test_pending_pod_within_its_min_is_entitled() -> None:
    small = make_pod("small", "", namespace="namespace2", requests={"cpu": "10"})
    large = make_pod("large", "", namespace="namespace2", requests={"cpu": "11"})
    nothing = make_pod("nothing", "", namespace="namespace2", requests={"memory": "1Gi"})
    elsewhere = make_pod("elsewhere", "", requests={"cpu": "1"})

    found = judge(MANUAL, small, large, nothing, elsewhere).waiting_entitled()

    assert [pod.key for pod in found] == ["namespace2/small", "namespace2/nothing"]


def shown(**used: str) -> Document:
    """The status of the manual's tree; path with `_` for dots -> CPUs in use there."""
    levels: Document = {}
    for one in tree(manual()).root.below():
        cpu = used.get(one.path.replace(".", "_"), "0")
        least, most = one.min["cpu"] // 1000, one.max["cpu"] // 1000
        entry = {"min": least, "max": most, "used": cpu, "requested": cpu, "borrowed": max(0, int(cpu) - least)}
        levels[one.path] = {field: {"cpu": str(amount)} for field, amount in entry.items()}
    return {"levels": levels}


ROUND = {"root": "20", "root_a": "20", "root_a_1": "20"}
"""What four pods of 5 CPUs in namespace1 make."""


def faults_of_status(status: Document, *more: tuple[str, Document]) -> list[str]:
    return judge(
        ("ElasticQuotaTree", tree_document(manual(), status=status)), *pods_of_5_cpu("namespace1", 4), *more
    ).status_faults()


def test_correct_status_has_no_fault() -> None:
    assert not faults_of_status(shown(**ROUND))


@pytest.mark.parametrize(
    ("path", "field", "amount", "fault"),
    [
        ("root.a", "used", "5", "root.a: status says 5000 cpu used, it is 20000"),
        ("root.a.1", "borrowed", "1", "root.a.1: status says 1000 cpu borrowed, it is 10000"),
        ("root.b", "min", "7", "root.b: status says 7000 cpu min, it is 20000"),
        ("root.b", "max", "7", "root.b: status says 7000 cpu max, it is 40000"),
        ("root.b", "requested", "7", "root.b: status says 7000 cpu requested, it is 0"),
        ("root.b", "lent", "21", "root.b: status says 21000 cpu lent, but 20000 is idle"),
    ],
)
def test_a_status_is_compared_with_the_sums(path: str, field: str, amount: str, fault: str) -> None:
    status = shown(**ROUND)
    status["levels"][path][field] = {"cpu": amount}

    assert faults_of_status(status) == [fault]


def test_a_status_has_every_level_and_no_other() -> None:
    status = shown(**ROUND)
    status["levels"]["c"] = status["levels"].pop("root.b.2")

    assert faults_of_status(status) == [
        "status.levels: c is not a level of the tree",
        "status.levels: root.b.2 is missing",
    ]


def test_pending_pod_counts_as_requested_unless_it_is_gated() -> None:
    gated = make_pod("gated", "", namespace="namespace1", requests={"cpu": "1"}, schedulingGates=[{"name": "g"}])
    waiting = make_pod("waiting", "", namespace="namespace1", requests={"cpu": "1"})

    assert not faults_of_status(shown(**ROUND), gated)
    assert faults_of_status(shown(**ROUND), waiting) == [
        f"{path}: status says 20000 cpu requested, it is 21000" for path in ("root", "root.a", "root.a.1")
    ]


def test_sums_and_excesses_equal_brute_force() -> None:
    """Random trees and pods, against twenty lines that know nothing of levels."""
    rng = random.Random(16)
    for _ in range(200):
        leaves = [level(f"l{n}", 0, rng.randint(1, 9), namespaces=(f"n{n}",)) for n in range(rng.randint(1, 5))]
        at = rng.randrange(len(leaves) + 1)
        inner = level("inner", 0, rng.randint(9, 20), *leaves[:at]) if at else None
        root = level("root", 0, 30, *([inner] if inner else []), *leaves[at:])
        root["min"] = root["max"]
        read = tree(root)
        pods = [(f"n{rng.randrange(6)}", {"cpu": rng.randint(0, 3) * 1000}) for _ in range(rng.randint(0, 15))]

        sums: Counter[str] = Counter()
        for namespace, requests in pods:
            leaf = namespace.replace("n", "l")
            if any(one["name"] == leaf for one in leaves):
                below = [leaf, "root", *(["inner"] if any(one["name"] == leaf for one in leaves[:at]) else [])]
                sums.update(dict.fromkeys(below, requests["cpu"]))
        usage = read.usage(pods)

        assert {one.name: usage.of(one)["cpu"] for one in read.root.below() if usage.of(one)["cpu"]} == +sums
        over = {one.name for one in read.root.below() if sums[one.name] > one.max["cpu"]}
        assert {one.level.name for one in usage.excesses()} == over


@pytest.mark.parametrize(
    ("annotations", "has_node", "thousandths"),
    [
        ({"gpu-milli": "250", "gpu-count": "2"}, False, 500),
        ({"gpu-milli": "250", "gpu-count": "none"}, False, 0),
        ({"gpu-milli": "1", "gpu-count": "2", "gpu-devices": "0,3", "gpu-allocated-milli": "250"}, True, 500),
        ({"gpu-milli": "250"}, True, 0),
    ],
    ids=["waiting", "unreadable", "on a node", "on a node that a stranger chose"],
)
def test_fractions_of_gpus_count_in_thousandths(annotations: dict[str, str], has_node: bool, thousandths: int) -> None:
    found = quota_requests(
        {"cpu": 1}, {f"multisched.io/{key}": text for key, text in annotations.items()}, has_node=has_node
    )
    assert found.get("nvidia.com/gpu", 0) == thousandths
    assert quota_requests({"nvidia.com/gpu": 2}, {}, has_node=True)["nvidia.com/gpu"] == 2000
