"""Terms that name no label: what they are about as pods come and go, and that many of them do not cost their square."""

from __future__ import annotations

import sys
from random import Random
from typing import Any

import pytest

from multisched.verify import Judge
from tests.unit.verify.clusters import HOST, ZONE, Told, affinity, anti_affinity, make_node, make_pod

NODES = [make_node(f"n{number}", zone=f"z{number % 2}", pods="1000", cpu="400") for number in range(4)]
ZONES = {f"n{number}": f"z{number % 2}" for number in range(4)}
VALUES = ("", "a", "b")
Labels = dict[str, str]


def term_with(key: str, operator: str, *values: str, topology: str = ZONE, **fields: Any) -> dict[str, Any]:
    expression = {"key": key, "operator": operator, **({"values": list(values)} if values else {})}
    return {"topologyKey": topology, "labelSelector": {"matchExpressions": [expression]}, **fields}


def is_meant(labels: Labels, term: dict[str, Any]) -> bool:
    [expression] = term["labelSelector"]["matchExpressions"]
    value = labels.get(expression["key"])
    match expression["operator"]:
        case "NotIn":
            return value not in expression["values"]
        case "In":
            return value in expression["values"]
        case "Exists":
            return value is not None
    return value is None


def domain(node: str, topology: str) -> str:
    return node if topology == HOST else ZONES[node]


def is_forbidden(pod: dict[str, Any], other: dict[str, Any]) -> bool:
    """One of the two has a term about the other, in a domain that both are in."""
    return any(
        domain(pod["node"], term["topologyKey"]) == domain(other["node"], term["topologyKey"])
        and is_meant(meant["labels"], term)
        for owner, meant in ((pod, other), (other, pod))
        for term in owner["terms"]
    )


@pytest.mark.parametrize("seed", range(60))
def test_anti_affinity_with_any_selector_equals_brute_force(seed: int) -> None:
    rng, judge, standing = Random(seed), Judge(), dict[str, dict[str, Any]]()
    for node in NODES:
        judge.add(*node)
    for step in range(60):
        name = f"p{rng.randrange(8)}"
        if standing.pop(name, None) is not None:
            judge.forget("Pod", make_pod(name, "")[1])
            continue
        labels = {key: value for key in ("x", "y", "z") if (value := rng.choice(VALUES))}
        terms = []
        for _ in range(rng.choice((0, 0, 1, 2))):
            operator = rng.choice(("NotIn", "In", "Exists", "DoesNotExist"))
            values = rng.sample(["a", "b"], rng.randint(1, 2)) if operator in ("NotIn", "In") else []
            terms.append(term_with(rng.choice("xyz"), operator, *values, topology=rng.choice((HOST, ZONE))))
        pod: dict[str, Any] = {"node": f"n{rng.randrange(4)}", "labels": labels, "terms": terms}
        _, document = make_pod(name, pod["node"], second=60 + step, labels=labels, affinity=anti_affinity(*terms))
        found = judge.bind(document, pod["node"])
        assert bool(found) == any(is_forbidden(pod, other) for other in standing.values())
        standing[name] = pod


def selects_all(number: int, at: int) -> dict[str, Any]:
    """About everybody, by a label that nobody has."""
    return term_with(f"k{number}-{at}", "DoesNotExist", namespaceSelector={})


def affinity_to_others(number: int, at: int) -> dict[str, Any]:
    return term_with("app", "NotIn", f"v{number}-{at}", namespaceSelector={})


def apart_from_others(number: int, at: int) -> dict[str, Any]:
    """About everybody but the workload itself."""
    return term_with("app", "NotIn", f"v{number}-{at}", "web", namespaceSelector={})


def calls_to_judge(shape: Any, make: Any, count: int) -> int:
    pods: list[Told] = [
        make_pod(
            f"p{number}",
            f"n{number % 4}",
            second=60 + number,
            labels={"app": "web", "n": str(number)},
            affinity=make(*(shape(number, at) for at in range(10))),
        )
        for number in range(count)
    ]
    calls = 0

    def counted(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    judge = Judge()
    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        for kind, document in (*NODES, *pods):
            judge.add(kind, document)
        assert judge.findings() == []
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize(
    ("shape", "make"), [(selects_all, affinity), (affinity_to_others, affinity), (apart_from_others, anti_affinity)]
)
def test_cost_of_terms_grows_linearly_with_pods(shape: Any, make: Any) -> None:
    few, many = (calls_to_judge(shape, make, count) for count in (100, 200))
    assert many < 2.2 * few
