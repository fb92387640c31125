"""The judge on rules between pods, in both directions: affinity, anti-affinity, spread; on volumes, and on domains."""

from __future__ import annotations

from typing import Any

import pytest

from multisched.verify import Domain, Judge, Loan, judge, judged_selector
from multisched.verify.placement_rules import PodRule
from multisched.verify.selectors import Toleration
from tests.unit.verify.clusters import (
    GPU,
    HOST,
    WEB,
    ZONE,
    Told,
    affinity,
    anti_affinity,
    at,
    certain,
    make_claim,
    make_node,
    make_pod,
    make_volume,
    node_affinity,
    possible,
    spread,
    term,
    using,
)

A1, A2, B1, C1 = (make_node(f"{zone}{n}", zone=zone) for zone, n in (("a", 1), ("a", 2), ("b", 1), ("c", 1)))
NODES = (A1, A2, B1, C1)


def web(name: str, node: str, second: int = 60, **fields: Any) -> Told:
    return make_pod(name, node, second=second, **{"labels": WEB, **fields})


def namespace(name: str, **labels: str) -> Told:
    return "Namespace", {"kind": "Namespace", "metadata": {"name": name, "labels": labels}}


# -- anti-affinity -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "rule", "is_wrong"),
    [
        ("a1", term(HOST), True),
        ("a2", term(HOST), False),
        ("a2", term(ZONE), True),
        ("b1", term(ZONE), False),
        ("a1", term("none"), False),
        ("a1", {"topologyKey": HOST}, False),
        ("a1", {"topologyKey": HOST, "labelSelector": {}}, True),
        ("a1", term(HOST, namespaces=["other"]), False),
        ("a1", term(HOST, namespaces=["other", "default"]), True),
        ("a1", term(HOST, namespaceSelector={"matchLabels": {"team": "x"}}), True),
        ("a1", term(HOST, namespaceSelector={"matchLabels": {"team": "y"}}), False),
        ("a1", term(HOST, namespaceSelector={}), True),
    ],
)
def test_anti_affinity_of_either_pod_applies_to_the_later_one(node: str, rule: dict[str, Any], is_wrong: bool) -> None:
    cluster = (*NODES, namespace("default", team="x"), namespace("other", team="y"))
    owner = {"affinity": anti_affinity(rule), "labels": {}}
    for pods in (
        [web("early", "a1", 10), web("late", node, 20, **owner)],
        [web("early", "a1", 10, **owner), web("late", node, 20)],
    ):
        assert certain(*cluster, *pods) == ({("late", "podAntiAffinity")} if is_wrong else set())


def test_anti_affinity_of_a_pod_ignores_itself() -> None:
    assert certain(*NODES, web("one", "a1", affinity=anti_affinity(term()))) == set()


def test_pod_with_the_term_is_reported_if_both_were_bound_together() -> None:
    pods = [web("z", "a1", 10), web("a", "a1", 10, affinity=anti_affinity(term()))]
    assert certain(*NODES, *pods) == {("a", "podAntiAffinity")}


# -- affinity ------------------------------------------------------------------------------------------------------------


def test_affinity_needs_a_matching_pod_in_its_domain() -> None:
    db: dict[str, Any] = {"labels": {"app": "db"}, "affinity": affinity(term(ZONE))}
    assert certain(*NODES, web("web", "a1", 10), make_pod("db", "a2", second=20, **db)) == set()
    assert certain(*NODES, web("web", "a1", 10), make_pod("db", "b1", second=20, **db)) == {("db", "podAffinity")}


def test_affinity_without_any_matching_pod_is_a_possible_violation() -> None:
    lonely = make_pod("db", "b1", second=20, affinity=affinity(term(ZONE)))
    assert (certain(*NODES, lonely), possible(*NODES, lonely)) == (set(), {("db", "podAffinity")})
    elsewhere = web("web", "a1", 10)
    assert certain(*NODES, elsewhere, web("was", "b1", 5, phase="Succeeded"), lonely) == set()
    assert certain(*NODES, elsewhere, lonely) == {("db", "podAffinity")}


def test_first_pod_of_a_group_needs_no_affinity_match() -> None:
    own = {"affinity": affinity(term(ZONE))}
    assert certain(*NODES, web("first", "a1", 10, **own)) == set()
    assert certain(*NODES, web("first", "a1", 10, **own), web("second", "b1", 20, **own)) == {("second", "podAffinity")}
    assert certain(*NODES, web("first", "a1", 10, **own), web("second", "a2", 20, **own)) == set()


def test_node_without_the_topology_label_violates_affinity() -> None:
    assert certain(*NODES, web("first", "a1", affinity=affinity(term("none")))) == {("first", "podAffinity")}


def test_affinity_match_must_satisfy_all_terms() -> None:
    two = affinity(term(ZONE), term(HOST, labelSelector={"matchLabels": {"tier": "front"}}))
    some = [web("web", "a1", 10), web("front", "a2", 10, labels={"tier": "front"})]
    both = web("both", "a2", 10, labels={**WEB, "tier": "front"})
    assert certain(*NODES, *some, both, make_pod("db", "a2", second=20, affinity=two)) == set()
    assert certain(*NODES, *some, both, make_pod("db", "a1", second=20, affinity=two)) == {("db", "podAffinity")}


# -- spread --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "rule", "wrong"),
    [
        (["a1", "b1", "c1"], spread(), []),
        (["a1", "a2"], spread(), ["1"]),
        (["a1", "a2"], spread(maxSkew=2), []),
        (["a1", "a2", "a1"], spread(maxSkew=2), ["2"]),
        (["a1", "a2"], spread(HOST), []),
        (["a1", "a1"], spread(HOST), ["1"]),
        (["a1", "b1", "c1", "a2"], spread(), []),
        (["a1", "b1", "c1", "a2"], spread(minDomains=4), ["3"]),
        (["a1", "a2"], spread(whenUnsatisfiable="ScheduleAnyway"), []),
        (["a1", "a2"], spread(labelSelector=None), []),
        (["a1", "a2"], spread(matchLabelKeys=["rev"]), []),
        (["a1"], spread("none"), ["0"]),
    ],
)
def test_topology_spread_reports_pods_beyond_the_skew(
    nodes: list[str], rule: list[dict[str, Any]], wrong: list[str]
) -> None:
    pods = [
        web(f"{n}", node, 10 + n, labels={**WEB, "rev": str(n)}, topologySpreadConstraints=rule)
        for n, node in enumerate(nodes)
    ]
    assert certain(*NODES, *pods) == {(name, "topologySpread") for name in wrong}


def test_topology_spread_counts_the_nodes_selected_by_its_policies() -> None:
    tainted = make_node("d1", zone="d", taints=[{"key": "k", "effect": "NoSchedule", "timeAdded": at(1)}])
    pods = {n: web(f"{n}", node, 10 + n, topologySpreadConstraints=spread()) for n, node in enumerate(["a1", "a2"])}
    own_zone = {"nodeSelector": {ZONE: "a"}}
    in_own_zone = [web(f"{n}", "a1", n, topologySpreadConstraints=spread(), **own_zone) for n in (1, 2)]
    ignoring = [
        web(f"{n}", "a1", n, topologySpreadConstraints=spread(nodeAffinityPolicy="Ignore"), **own_zone) for n in (1, 2)
    ]
    assert certain(*NODES, *in_own_zone) == set()
    assert certain(*NODES, *ignoring) == {("2", "topologySpread")}
    honoring = [web(f"{n}", "a1", n, topologySpreadConstraints=spread(nodeTaintsPolicy="Honor")) for n in (1, 2)]
    assert certain(A1, tainted, *honoring) == set()
    assert certain(A1, A2, tainted, pods[0], pods[1]) == {("1", "topologySpread")}


def test_finished_and_terminating_pods_give_a_possible_spread_violation() -> None:
    rule = {"topologySpreadConstraints": spread()}
    late = [web("1", "a1", 10, **rule), web("2", "a1", 20, **rule)]
    for gone in ({"is_terminating": True}, {"phase": "Succeeded"}):
        others = [web("b", "b1", 5, **gone), web("c", "c1", 5, **gone)]
        assert (certain(*NODES, *others, *late), possible(*NODES, *others, *late)) == (set(), {("2", "topologySpread")})


def test_zone_younger_than_the_pod_gives_a_possible_spread_violation() -> None:
    rule = {"topologySpreadConstraints": spread()}
    late = [web("1", "a1", 10, **rule), web("2", "a1", 20, **rule)]
    new = make_node("b9", zone="b", created=at(30))
    assert (certain(A1, new, *late), possible(A1, new, *late)) == (set(), {("2", "topologySpread")})


def test_spread_of_a_foreign_scheduler_is_only_a_possible_violation() -> None:
    rule = {"topologySpreadConstraints": spread(), "schedulerName": "my-scheduler"}
    late = [web("1", "a1", 10, **rule), web("2", "a1", 20, **rule)]
    assert (certain(A1, B1, *late), possible(A1, B1, *late)) == (set(), {("2", "topologySpread")})
    elsewhere = make_pod("x", "b1", schedulerName="my-scheduler")
    assert certain(A1, B1, elsewhere, *late) == {("2", "topologySpread")}


# -- volumes -------------------------------------------------------------------------------------------------------------


def limits(node: str, driver: str, count: int) -> Told:
    spec = {"drivers": [{"name": driver, "nodeID": node, "allocatable": {"count": count}}]}
    return "CSINode", {"kind": "CSINode", "metadata": {"name": node}, "spec": spec}


def in_zone(zone: str) -> dict[str, Any]:
    terms = node_affinity({"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]})
    return {"nodeAffinity": {"required": terms["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]}}


@pytest.mark.parametrize(
    ("objects", "is_wrong"),
    [
        ([make_claim("c", "v"), make_volume("v", "c")], False),
        ([make_claim("c"), make_volume("v", "c")], True),
        ([make_claim("c", "v"), make_volume("v", "other")], True),
        ([make_claim("c", "v"), make_volume("v", "c", **in_zone("a"))], False),
        ([make_claim("c", "v"), make_volume("v", "c", **in_zone("b"))], True),
        ([make_claim("c", "v"), make_volume("v", "c", labels={ZONE: "b__a"})], False),
        ([make_claim("c", "v"), make_volume("v", "c", labels={ZONE: "b__c"})], True),
        ([make_claim("c", "v"), make_volume("v", "c", labels={"failure-domain.beta.kubernetes.io/zone": "b"})], True),
    ],
)
def test_pod_runs_where_its_volumes_are_reachable(objects: list[Told], is_wrong: bool) -> None:
    found = certain(*NODES, *objects, make_pod("one", "a1", volumes=using("c")))
    assert found == ({("one", "volumes")} if is_wrong else set())


def test_missing_claim_gives_a_possible_violation() -> None:
    cluster = (*NODES, make_claim("other", "v"), make_pod("one", "a1", volumes=using("c")))
    assert (certain(*cluster), possible(*cluster)) == (set(), {("one", "volumes")})


def test_claims_are_not_judged_if_none_were_listed() -> None:
    cluster = (*NODES, make_pod("one", "a1", volumes=using("c")))
    assert (certain(*cluster), possible(*cluster)) == (set(), set())


def test_read_write_once_pod_claim_has_one_user() -> None:
    volume = make_volume("v", "c")
    pods = [make_pod("early", "a1", second=1, volumes=using("c")), make_pod("late", "b1", second=2, volumes=using("c"))]
    assert certain(*NODES, volume, make_claim("c", "v"), *pods) == set()
    exclusive = make_claim("c", "v", mode="ReadWriteOncePod")
    assert certain(*NODES, volume, exclusive, *pods) == {("late", "volumes")}


def test_volume_limit_of_a_node_is_kept() -> None:
    storage = [made for n in "12" for made in (make_claim(n, f"v{n}"), _of_driver(f"v{n}", n))]
    pods = [make_pod(n, "a1", second=int(n), volumes=using(n)) for n in "12"]
    sharer = make_pod("3", "a1", second=3, volumes=using("1"))
    assert certain(*NODES, *storage, limits("a1", "d", 2), *pods, sharer) == set()
    assert certain(*NODES, *storage, limits("a1", "d", 1), *pods, sharer) == {("2", "volumes")}
    assert certain(*NODES, *storage, limits("a1", "other", 1), *pods) == set()


def _of_driver(name: str, claim: str) -> Told:
    return make_volume(name, claim, csi={"driver": "d", "volumeHandle": name})


@pytest.mark.parametrize(
    ("first", "second", "is_wrong"),
    [
        ({"gcePersistentDisk": {"pdName": "d"}}, {"gcePersistentDisk": {"pdName": "d"}}, True),
        ({"gcePersistentDisk": {"pdName": "d"}}, {"gcePersistentDisk": {"pdName": "e"}}, False),
        (
            {"gcePersistentDisk": {"pdName": "d", "readOnly": True}},
            {"gcePersistentDisk": {"pdName": "d", "readOnly": True}},
            False,
        ),
        ({"awsElasticBlockStore": {"volumeID": "d"}}, {"awsElasticBlockStore": {"volumeID": "d"}}, True),
        ({"iscsi": {"iqn": "d"}}, {"iscsi": {"iqn": "d", "readOnly": True}}, True),
        (
            {"rbd": {"monitors": ["m", "n"], "pool": "p", "image": "i"}},
            {"rbd": {"monitors": ["n"], "pool": "p", "image": "i"}},
            True,
        ),
        (
            {"rbd": {"monitors": ["m"], "pool": "p", "image": "i"}},
            {"rbd": {"monitors": ["n"], "pool": "p", "image": "i"}},
            False,
        ),
    ],
)
def test_conflicting_disks_do_not_share_a_node(first: dict[str, Any], second: dict[str, Any], is_wrong: bool) -> None:
    pods = [make_pod("early", "a1", second=1, volumes=[first]), make_pod("late", "a1", second=2, volumes=[second])]
    assert certain(*NODES, *pods) == ({("late", "volumes")} if is_wrong else set())
    apart = [pods[0], make_pod("late", "a2", second=2, volumes=[second])]
    assert certain(*NODES, *apart) == set()


# -- domains -------------------------------------------------------------------------------------------------------------

DOMAINS = (
    Domain("work", frozenset({"work-scheduler"}), "rest"),
    Domain("gpu", frozenset({"gpu-scheduler"}), "gpu"),
    Domain(
        "job",
        frozenset({"job-scheduler"}),
        "virtual",
        loans=(Loan("work", judged_selector({"matchLabels": {"lend": "yes"}})),),
    ),
    Domain("special", frozenset({"special-scheduler"}), "", judged_selector({"matchLabels": {"pool": "special"}})),
)
PLAIN = make_node("plain")
LENT = make_node("lent", labels={"lend": "yes"})
CARDS = make_node("cards", more={GPU: "4"})
VIRTUAL = make_node("virtual", labels={"type": "virtual-kubelet"})
SPECIAL = make_node("special", labels={"pool": "special"}, more={GPU: "4"})
OWNED = make_node("owned", labels={"multisched.io/domain": "gpu", "pool": "special"})


@pytest.mark.parametrize(
    ("scheduler", "right"),
    [
        ("work-scheduler", {"plain", "lent"}),
        ("gpu-scheduler", {"cards", "owned"}),
        ("job-scheduler", {"virtual", "lent"}),
        ("special-scheduler", {"special"}),
        ("default-scheduler", {"plain", "lent", "cards", "virtual", "special", "owned"}),
    ],
)
def test_pods_run_on_nodes_of_their_domain_or_lent_nodes(scheduler: str, right: set[str]) -> None:
    nodes = (PLAIN, LENT, CARDS, VIRTUAL, SPECIAL, OWNED)
    pods = [make_pod(node["metadata"]["name"], node["metadata"]["name"], schedulerName=scheduler) for _, node in nodes]
    wrong = {node["metadata"]["name"] for _, node in nodes} - right
    assert certain(*nodes, *pods, domains=DOMAINS) == {(name, "domain") for name in wrong}


def test_limited_toleration_of_a_domain_covers_only_matching_pods() -> None:
    card, rule = Toleration(GPU, "Exists", "", "NoSchedule"), PodRule(frozenset({GPU}), frozenset({"milli"}))
    domains = (Domain("gpu", frozenset({"gpu-scheduler"}), "gpu", limited=((card, rule),)),)
    taint = {"key": GPU, "effect": "NoSchedule", "timeAdded": at(0)}
    node = make_node("cards", more={GPU: "4"}, taints=[taint])

    def told(**fields: Any) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
        cluster = (node, make_pod("one", "cards", schedulerName="gpu-scheduler", **fields))
        return certain(*cluster, domains=domains), possible(*cluster, domains=domains)

    assert told(requests={GPU: "1"}) == (set(), set())
    assert told(annotations={"milli": "250"}) == (set(), set())
    assert told(requests={"cpu": "1"}) == (set(), {("one", "taints")}), "an annotation may have gone"
    by_request = (Domain("gpu", frozenset({"gpu-scheduler"}), "gpu", limited=((card, PodRule(frozenset({GPU}))),)),)
    pod = make_pod("one", "cards", schedulerName="gpu-scheduler", requests={"cpu": "1"})
    assert certain(node, pod, domains=by_request) == {("one", "taints")}


def test_node_without_allocatable_gpus_gives_a_possible_domain_violation() -> None:
    node = make_node("cards", more={GPU: "0"}, capacity={GPU: "4"})
    cluster = (node, make_pod("one", "cards", schedulerName="gpu-scheduler"))
    assert (certain(*cluster, domains=DOMAINS), possible(*cluster, domains=DOMAINS)) == (set(), {("one", "domain")})


# -- the order of binds --------------------------------------------------------------------------------------------------


def test_each_placement_is_judged_by_earlier_ones_if_the_order_is_given() -> None:
    rule = {"topologySpreadConstraints": spread()}
    pods = [web("x", "a1", 60, **rule), web("y", "a2", 60, **rule), web("z", "b1", 60, **rule), web("w", "c1", 60)]
    uids = {document["metadata"]["name"]: document["metadata"]["uid"] for _, document in pods}

    def wrong(order: str) -> list[str]:
        return [one.pod for one in judge([*NODES, *pods], order=[uids[name] for name in order])]

    assert judge([*NODES, *pods]) == []
    assert wrong("xzwy") == []
    assert wrong("xyzw") == ["default/y"]


def test_bind_is_judged_without_deleted_pods() -> None:
    told = Judge()
    for kind, document in NODES:
        told.add(kind, document)
    first, second = (web(name, "", affinity=anti_affinity(term()))[1] for name in ("first", "second"))
    assert told.bind(first, "a1") == []
    assert [one.rule for one in told.bind(second, "a1")] == ["podAntiAffinity"]
    told.forget("Pod", first)
    assert told.bind(second, "a1") == []
