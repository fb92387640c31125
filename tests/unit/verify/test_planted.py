"""Random clusters: what a brute-force judge of thirty lines says, and one violation of each rule planted in a clean one."""

from __future__ import annotations

import random
from typing import Any

import pytest

from multisched.verify import RULES, Domain, Loan, judge
from multisched.verify.selectors import LabelSelector
from tests.unit.verify.clusters import (
    GPU,
    HOST,
    ZONE,
    Document,
    Told,
    affinity,
    anti_affinity,
    at,
    make_claim,
    make_node,
    make_pod,
    make_volume,
    spread,
    term,
    using,
)

CLUSTERS = 300
APPS = ("web", "db", "log")


def random_cluster(rng: random.Random) -> list[Told]:
    nodes = [make_node(f"n{n}", zone=rng.choice("ab"), cpu=str(rng.randint(2, 6))) for n in range(rng.randint(2, 6))]
    if rng.random() < 0.3:
        del nodes[0][1]["metadata"]["labels"][ZONE]
    return nodes + [random_pod(rng, n, rng.choice(nodes)[1]["metadata"]["name"]) for n in range(rng.randint(1, 14))]


def random_pod(rng: random.Random, number: int, node: str) -> Told:
    fields: Document = {"labels": {"app": rng.choice(APPS)}, "requests": {"cpu": f"{rng.randint(1, 16)}00m"}}
    rule = {"labelSelector": {"matchLabels": {"app": rng.choice(APPS)}}, "topologyKey": rng.choice((HOST, ZONE))}
    drawn = rng.random()
    if drawn < 0.2:
        fields["affinity"] = anti_affinity(rule)
    elif drawn < 0.4:
        fields["affinity"] = affinity(rule)
    elif drawn < 0.6:
        fields["topologySpreadConstraints"] = [
            {**rule, "maxSkew": rng.randint(1, 2), "whenUnsatisfiable": "DoNotSchedule"}
        ]
    if rng.random() < 0.3:
        fields["ports"] = [{"hostPort": rng.randint(1, 2)}]
    return make_pod(f"p{number}", node, second=60 + number, **fields)


def brute_force(cluster: list[Told]) -> set[tuple[str, str]]:
    """(pod, rule), by walking everything. All pods come at different moments, in the order of the list."""
    nodes = {d["metadata"]["name"]: d for kind, d in cluster if kind == "Node"}
    pods = [d for kind, d in cluster if kind == "Pod"]
    found: set[tuple[str, str]] = set()
    used = {name: (0, frozenset[int]()) for name in nodes}

    def place(pod: Document, key: str) -> str | None:
        labels: dict[str, str] = nodes[pod["spec"]["nodeName"]]["metadata"]["labels"]
        return labels.get(key)

    def is_about(rule: Document, pod: Document) -> bool:
        return bool(rule["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items())

    def terms(pod: Document, kind: str) -> list[Document]:
        found = pod["spec"].get("affinity", {}).get(kind, {})
        return list(found.get("requiredDuringSchedulingIgnoredDuringExecution", []))

    for number, pod in enumerate(pods):
        name, node, earlier = pod["metadata"]["name"], pod["spec"]["nodeName"], pods[:number]
        others = [one for one in pods if one is not pod]
        container = pod["spec"]["containers"][0]
        cpu, ports = (
            int(container["resources"]["requests"]["cpu"][:-1]),
            {p["hostPort"] for p in container.get("ports", ())},
        )
        rules = {"resources": used[node][0] + cpu > 1000 * int(nodes[node]["status"]["allocatable"]["cpu"])}
        rules["hostPorts"] = bool(ports & used[node][1])
        if not any(rules.values()):
            used[node] = (used[node][0] + cpu, used[node][1] | ports)
        rules["podAntiAffinity"] = any(
            place(pod, rule["topologyKey"]) == place(one, rule["topologyKey"]) is not None and is_about(rule, about)
            for one in earlier
            for rule, about in [(r, one) for r in terms(pod, "podAntiAffinity")]
            + [(r, pod) for r in terms(one, "podAntiAffinity")]
        )
        for rule in terms(pod, "podAffinity"):
            key = rule["topologyKey"]
            company = [place(one, key) for one in others if is_about(rule, one)]
            was_first = is_about(rule, pod) and not any(is_about(rule, one) and place(one, key) for one in earlier)
            rules["podAffinity"] = place(pod, key) is None or (place(pod, key) not in company and not was_first)
        for rule in pod["spec"].get("topologySpreadConstraints", ()):
            key = rule["topologyKey"]
            there = [place(one, key) for one in others if is_about(rule, one)]
            domains = {d["metadata"]["labels"][key] for d in nodes.values() if key in d["metadata"]["labels"]}
            before = sum(is_about(rule, one) and place(one, key) == place(pod, key) for one in earlier)
            least = min((there.count(domain) for domain in domains), default=before)
            skew = before + is_about(rule, pod) - least
            rules["topologySpread"] = place(pod, key) is None or skew > rule["maxSkew"]
        found |= {(name, rule) for rule, is_broken in rules.items() if is_broken}
    return found


def named(cluster: list[Told], domains: tuple[Domain, ...] = ()) -> set[tuple[str, str]]:
    return {(one.pod.removeprefix("default/"), one.rule) for one in judge(cluster, domains=domains)}


@pytest.mark.parametrize("block", range(10))
def test_judge_finds_the_same_as_brute_force(block: int) -> None:
    for seed in range(block * CLUSTERS // 10, (block + 1) * CLUSTERS // 10):
        cluster = random_cluster(random.Random(seed))
        shuffled = random.Random(seed).sample(cluster, len(cluster))
        assert named(shuffled) == brute_force(cluster), f"seed {seed}"


def test_random_clusters_have_all_kinds_of_violations_and_clean_pods() -> None:
    found = [rule for seed in range(CLUSTERS) for _, rule in brute_force(random_cluster(random.Random(seed)))]
    kinds = ("resources", "hostPorts", "podAntiAffinity", "podAffinity", "topologySpread")
    assert all(found.count(rule) > CLUSTERS / 10 for rule in kinds)


# -- planted -------------------------------------------------------------------------------------------------------------

DOMAINS = (
    Domain("all", frozenset({"default-scheduler"}), "rest"),
    Domain("own", frozenset({"own-scheduler"}), "labelled"),
    Domain(
        "job",
        frozenset({"job-scheduler"}),
        "labelled",
        loans=(Loan("all", LabelSelector(), is_limited=True, resources=frozenset({"cpu"})),),
    ),
)


def clean_cluster(rng: random.Random) -> list[Told]:
    """Three zones of nodes, workloads of all kinds, nothing wrong."""
    nodes = [
        make_node(f"n{n}", zone="abc"[n % 3], cpu="16", memory="64Gi", pods="40", more={GPU: "2"}) for n in range(9)
    ]
    pods = []
    for n in range(27):
        node, app = f"n{n % 9}", f"app-{n // 9}"
        rule = term(HOST, labelSelector={"matchLabels": {"app": app}})
        fields: Document = {"labels": {"app": app}, "requests": {"cpu": f"{rng.randint(1, 9)}00m", "memory": "1Gi"}}
        if n < 9:
            fields["affinity"] = anti_affinity(rule)
        elif n < 18:
            fields["topologySpreadConstraints"] = spread(labelSelector={"matchLabels": {"app": app}})
        else:
            fields["affinity"] = affinity({**rule, "topologyKey": ZONE})
            node = ("n0", "n3", "n6")[n % 3]
            fields["ports"] = [{"hostPort": 8000 + n}]
        pods.append(make_pod(f"p{n}", node, second=60 + n, schedulerName="default-scheduler", **fields))
    disk = [make_claim("disk", "disk"), make_volume("disk", "disk", labels={ZONE: "a"})]
    return [*nodes, *pods, *disk, make_pod("db", "n0", second=90, volumes=using("disk"))]


PLANTS: dict[str, tuple[str, Document]] = {
    "resources": ("n4", {"requests": {"memory": "63Gi"}}),
    "hostPorts": ("n3", {"ports": [{"hostPort": 8018}, {"hostPort": 8019}]}),
    "taints": ("n4", {}),
    "nodeAffinity": ("n4", {"nodeSelector": {ZONE: "c"}}),
    "podAffinity": ("n1", {"affinity": affinity(term(ZONE, labelSelector={"matchLabels": {"app": "app-2"}}))}),
    "podAntiAffinity": ("n5", {"affinity": anti_affinity(term(ZONE, labelSelector={"matchLabels": {"app": "app-1"}}))}),
    "topologySpread": (
        "n0",
        {
            "labels": {"app": "new"},
            "topologySpreadConstraints": spread(labelSelector={"matchLabels": {"app": "app-2"}}, maxSkew=1),
        },
    ),
    "volumes": ("n1", {"volumes": using("disk")}),
    "devices": ("n4", {"annotations": {"multisched.io/gpu-milli": "500", "multisched.io/gpu-devices": "2"}}),
    "domain": ("n4", {"schedulerName": "own-scheduler"}),
    "loans": ("n4", {"schedulerName": "job-scheduler", "requests": {"memory": "1Mi"}}),
}


def with_planted(cluster: list[Told], rule: str) -> list[Told]:
    """The cluster and one more pod, which came last and breaks the rule."""
    node, fields = PLANTS[rule]
    if rule == "taints":
        target = next(d for kind, d in cluster if kind == "Node" and d["metadata"]["name"] == node)
        target["spec"]["taints"] = [{"key": "k", "effect": "NoSchedule", "timeAdded": at(150)}]
    return [*cluster, make_pod("planted", node, second=200, **{"schedulerName": "default-scheduler", **fields})]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("seed", range(3))
def test_only_the_planted_violation_is_reported(rule: str, seed: int) -> None:
    cluster = clean_cluster(random.Random(seed))
    assert named(cluster, DOMAINS) == set()
    cluster = with_planted(cluster, rule)
    random.Random(seed).shuffle(cluster)
    assert [(one.pod, one.rule, one.is_sure) for one in judge(cluster, domains=DOMAINS)] == [
        ("default/planted", rule, True)
    ]


@pytest.mark.parametrize("rule", RULES)
def test_planted_pod_is_reported_if_the_bind_order_is_given(rule: str) -> None:
    cluster = with_planted(clean_cluster(random.Random(0)), rule)
    order: list[Any] = [document["metadata"]["uid"] for kind, document in cluster if kind == "Pod"]
    late = [one for one in judge(cluster, order=order, domains=DOMAINS) if one.pod == "default/planted"]
    assert [one.rule for one in late] == [rule]
