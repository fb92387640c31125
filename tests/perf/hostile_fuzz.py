"""Looks for pods that cost others more than they should: `python -m tests.perf.hostile_fuzz [--seconds 120] [--seed 0]`.

A *genome* says how many of each thing that a namespace user may write stands in a tenant's pods, and whether all pods have the
same or each its own. Each is played on the core (`hostile_core`), and its cost held against that of plain pods: CPU of ingest, of
its own decision, of a plain victim's decision and of a placed victim's event, and bytes kept of each pod. The worst are
changed a little and played again. Prints the worst by each cost, as multiples of a plain pod's; exits 1 when a victim's
decision takes `VICTIM_MAX` times as long as beside plain pods, or an event `EVENT_MAX_MS`.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from multisched.model.gang import ACK_MIN, ACK_NAME, TOPOLOGY_ANNOTATION
from tests.perf.hostile_core import Cost, measure
from tests.perf.hostile_shapes import PREFERRED, REQUIRED, bare
from tests.perf.shapes import HOSTNAME, ZONE

PODS: Final = 100
NODES: Final = 200
VICTIM_MAX: Final = 50.0
EVENT_MAX_MS: Final = 50.0
"""One event may wake pods for as long; others wait meanwhile."""
KEPT: Final = 8
"""Genomes that are changed further."""

OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist")

Genome = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Gene:
    """One thing that stands in a pod, so many times at most."""

    name: str
    most: int
    write: Callable[[dict[str, Any], int, str, random.Random], None]
    """Writes so many into a pod; the text is the pod's own, or common to all; chance is the genome's."""


@dataclass(frozen=True, slots=True)
class Found:
    """A genome with what it costs, as multiples of a plain pod's costs."""

    genome: Genome
    cost: Cost
    ratios: Mapping[str, float]


def _selector(own: str, chance: random.Random, at: int) -> dict[str, Any]:
    found = []
    for part in range(chance.choice((1, 1, 2, 3))):
        operator = chance.choice(OPERATORS)
        one: dict[str, Any] = {"key": chance.choice(("app", "n", "app", f"k{own}-{part}")), "operator": operator}
        if operator in ("In", "NotIn"):
            one["values"] = [f"v{own}-{at}-{n}" for n in range(chance.choice((1, 1, 5, 50)))] + ["victim", "hostile"]
        found.append(one)
    return {"matchExpressions": found}


def _term(own: str, chance: random.Random, at: int) -> dict[str, Any]:
    key = chance.choice((ZONE, HOSTNAME, f"example.com/k{own}-{at}"))
    term: dict[str, Any] = {"topologyKey": key, "labelSelector": _selector(own, chance, at)}
    kind = chance.random()
    if kind < 0.6:
        term["namespaceSelector"] = {}
    elif kind < 0.7:
        term["namespaceSelector"] = {"matchExpressions": [{"key": f"t{own}", "operator": "DoesNotExist"}]}
    elif kind < 0.8:
        names: Any = [*(f"n{own}-{n}" for n in range(20)), "victim"]
        term["namespaces"] = names
    return term


def _affinity(side: str, strength: str) -> Callable[[dict[str, Any], int, str, random.Random], None]:
    def write(pod: dict[str, Any], count: int, own: str, chance: random.Random) -> None:
        terms: list[dict[str, Any]] = [_term(own, chance, at) for at in range(count)]
        if strength == PREFERRED:
            terms = [{"weight": chance.randint(1, 100), "podAffinityTerm": one} for one in terms]
        pod["spec"].setdefault("affinity", {}).setdefault(side, {})[strength] = terms

    return write


def _node_affinity(pod: dict[str, Any], count: int, own: str, chance: random.Random) -> None:
    terms = [{"matchExpressions": [_selector(own, chance, at)["matchExpressions"][0]]} for at in range(count)]
    terms.append({"matchExpressions": [{"key": HOSTNAME, "operator": "Exists"}]})
    affinity: dict[str, Any] = {REQUIRED: {"nodeSelectorTerms": terms}}
    affinity[PREFERRED] = [{"weight": 1, "preference": term} for term in terms[: 63 - count]]
    pod["spec"].setdefault("affinity", {})["nodeAffinity"] = affinity


def _spread(pod: dict[str, Any], count: int, own: str, chance: random.Random) -> None:
    pod["spec"]["topologySpreadConstraints"] = [
        {
            "maxSkew": 10_000,
            "topologyKey": chance.choice((ZONE, HOSTNAME)),
            "whenUnsatisfiable": chance.choice(("DoNotSchedule", "ScheduleAnyway")),
            "labelSelector": _selector(own, chance, at),
        }
        for at in range(count)
    ]


def _labels(pod: dict[str, Any], count: int, own: str, chance: random.Random) -> None:
    pod["metadata"]["labels"] |= {f"k{own}-{at}": f"v{own}-{at}" for at in range(count)}


def _annotations(pod: dict[str, Any], count: int, own: str, chance: random.Random) -> None:
    pod["metadata"]["annotations"] = {f"k{own}-{at}": "x" * 200 for at in range(count)}


def _tolerations(pod: dict[str, Any], count: int, own: str, chance: random.Random) -> None:
    pod["spec"]["tolerations"] = [{"key": f"k{own}-{at}", "operator": "Exists"} for at in range(count)]


def _ports(pod: dict[str, Any], count: int, own: str, chance: random.Random) -> None:
    first = 1 + hash(own) % 10_000
    ports = [{"containerPort": 1, "hostPort": first + at, "hostIP": f"10.0.{at % 250}.1"} for at in range(count)]
    pod["spec"]["containers"][0]["ports"] = ports


def _resources(pod: dict[str, Any], count: int, own: str, chance: random.Random) -> None:
    pod["spec"]["containers"][0]["resources"]["requests"] |= {f"example.com/r{own}-{at}": "0" for at in range(count)}


def _claims(pod: dict[str, Any], count: int, own: str, chance: random.Random) -> None:
    volumes = [{"name": f"v{at}", "persistentVolumeClaim": {"claimName": f"c{own}-{at}"}} for at in range(count)]
    pod["spec"]["volumes"] = volumes


def _containers(pod: dict[str, Any], count: int, own: str, chance: random.Random) -> None:
    pod["spec"]["initContainers"] = [{"name": f"i{at}", "image": f"i{own}-{at}"} for at in range(count)]


def _impossible(pod: dict[str, Any], count: int, own: str, chance: random.Random) -> None:
    """Refused by room: parked, and asked about at events."""
    pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "1000"


def _gang(pod: dict[str, Any], count: int, own: str, chance: random.Random) -> None:
    """Gangs of so many, by the pod's number."""
    size = max(count, 2)
    gang = int(pod["metadata"]["name"].rpartition("-")[2]) // size
    pod["metadata"]["labels"] |= {ACK_NAME: f"gang-{gang}", ACK_MIN: str(size)}


def _topology(pod: dict[str, Any], count: int, own: str, chance: random.Random) -> None:
    levels = (ZONE, f"{ZONE},{HOSTNAME}", f"{ZONE}:required,{HOSTNAME}")[count - 1]
    pod["metadata"].setdefault("annotations", {})[TOPOLOGY_ANNOTATION] = levels


def _urgent(pod: dict[str, Any], count: int, own: str, chance: random.Random) -> None:
    """May displace pods that are less important; every second one is."""
    pod["spec"]["priority"] = 1_000 * (int(pod["metadata"]["name"].rpartition("-")[2]) % 2)


GENES: Final = (
    Gene("near", 60, _affinity("podAffinity", PREFERRED)),
    Gene("far", 60, _affinity("podAntiAffinity", PREFERRED)),
    Gene("must-be-near", 20, _affinity("podAffinity", REQUIRED)),
    Gene("must-be-far", 60, _affinity("podAntiAffinity", REQUIRED)),
    Gene("node-terms", 60, _node_affinity),
    Gene("spread", 16, _spread),
    Gene("labels", 500, _labels),
    Gene("annotations", 500, _annotations),
    Gene("tolerations", 200, _tolerations),
    Gene("host-ports", 200, _ports),
    Gene("resources", 200, _resources),
    Gene("claims", 50, _claims),
    Gene("init-containers", 200, _containers),
    Gene("impossible", 1, _impossible),
    Gene("gang", 100, _gang),
    Gene("gang-topology", 3, _topology),
    Gene("urgent", 1, _urgent),
)
OWN: Final = "each-its-own"
CHANCE: Final = "chance"


def pod_of(genome: Genome) -> Callable[[int], dict[str, Any]]:
    """The genome's pods by number."""

    def made(number: int) -> dict[str, Any]:
        pod, own = bare(number), str(number) if genome.get(OWN) else "x"
        for gene in GENES:
            if genome.get(gene.name):
                gene.write(pod, genome[gene.name], own, random.Random(genome[CHANCE]))
        return pod

    return made


def drawn(chance: random.Random) -> Genome:
    """A few genes, often as many as there may be."""
    genome = {gene.name: _much(chance, gene) for gene in chance.sample(GENES, chance.choice((1, 1, 2, 3)))}
    return MappingProxyType({**genome, OWN: chance.choice((0, 1, 1)), CHANCE: chance.randrange(1 << 16)})


def changed(genome: Genome, chance: random.Random) -> Genome:
    """One gene comes, goes or has another number, or chance is another."""
    found, gene = dict(genome), chance.choice(GENES)
    if chance.random() < 0.3:
        found[CHANCE] = chance.randrange(1 << 16)
    elif gene.name in found and chance.random() < 0.5:
        del found[gene.name]
    else:
        found[gene.name] = _much(chance, gene)
    return MappingProxyType(found)


def _much(chance: random.Random, gene: Gene) -> int:
    return gene.most if chance.random() < 0.5 else chance.randint(1, gene.most)


def ratios(cost: Cost, plain: Cost) -> Mapping[str, float]:
    """Each cost as a multiple of the plain pod's; events in units of a plain decision, bytes of 4 KiB."""
    return MappingProxyType({
        "ingest": cost.ingest_ms / plain.ingest_ms,
        "decide": cost.decide_ms / plain.decide_ms,
        "victim": cost.victim_ms / plain.victim_ms,
        "event": cost.event_max_ms / plain.decide_ms,
        "kept": max(0.0, cost.kept_bytes) / 4096,
    })  # fmt: skip


def search(seconds: float, chance: random.Random, pods: int, nodes: int) -> list[Found]:
    """All genomes that were played."""
    plain = measure(bare, pods, nodes)
    began, played = time.monotonic(), list[Found]()
    while time.monotonic() - began < seconds:
        worst = [max(played, key=lambda one: one.ratios[name]) for name in ratios(plain, plain)] if played else []
        parents = [*worst, *sorted(played, key=lambda one: -one.ratios["victim"])[:KEPT]]
        genome = changed(chance.choice(parents).genome, chance) if parents and chance.random() < 0.6 else drawn(chance)
        cost = measure(pod_of(genome), pods, nodes)
        played.append(Found(genome, cost, ratios(cost, plain)))
    return played


def confirmed(found: Found, pods: int, nodes: int) -> Found:
    """Played once more, the lesser of both: what else the machine does only ever adds."""
    again = measure(pod_of(found.genome), pods, nodes)
    cost = replace(
        found.cost,
        victim_ms=min(found.cost.victim_ms, again.victim_ms),
        event_max_ms=min(found.cost.event_max_ms, again.event_max_ms),
    )
    return replace(found, cost=cost)


def main() -> int:
    """Prints the worst; 1 if one is beyond the bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pods", type=int, default=PODS, help="of each genome")
    parser.add_argument("--nodes", type=int, default=NODES)
    options = parser.parse_args()
    played = search(options.seconds, random.Random(options.seed), options.pods, options.nodes)
    print(f"{len(played)} genomes; costs as multiples of a plain pod's")
    is_broken = False
    for name in ("victim", "event", "decide", "ingest", "kept"):
        for one in sorted(played, key=lambda found: -found.ratios[name])[:3]:
            genome = {gene: count for gene, count in one.genome.items() if count}
            print(f"{name:>8} {one.ratios[name]:>8.1f}  {genome}")
    for one in sorted(played, key=lambda found: -found.cost.step_max_ms)[:3]:
        print(f"    step {one.cost.step_max_ms:>5.0f} ms  { ({gene: n for gene, n in one.genome.items() if n}) }")
    for one in played:
        if one.ratios["victim"] > VICTIM_MAX or one.cost.event_max_ms > EVENT_MAX_MS:
            sure = confirmed(one, options.pods, options.nodes)
            share = sure.cost.victim_ms * one.ratios["victim"] / one.cost.victim_ms
            if share > VICTIM_MAX or sure.cost.event_max_ms > EVENT_MAX_MS:
                is_broken = True
                print(
                    f"BROKEN {share:.0f} times a victim's decision, {sure.cost.event_max_ms:.0f} ms an event: {dict(one.genome)}"
                )
    return int(is_broken)


if __name__ == "__main__":
    sys.exit(main())
