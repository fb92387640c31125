"""Several pods one after the other: what one cycle decides of each, and the problem that each was once those before it stood.

Our cycle lives through the whole sequence, with its classes; whoever judges it, kube-scheduler's own code (`oracle.py`) or the
plain reference, is shown each pod anew with those before it where ours has put them. So ties, which go by chance, part nobody.
The watch tells ours of the pods it placed one by one or in batches; the judge sees them bound at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random
from typing import Any, NamedTuple

import orjson

from multisched.cycle.results import Placed, Result, Unplaced
from multisched.framework.points import QueuedPod
from multisched.model.decode import Decoder
from multisched.model.objects import Pod
from tests.conformance.answer import Scene, load, preemption_of
from tests.conformance.generate import problem

Json = dict[str, Any]

FAMILIES = ("resources", "taints", "node_affinity", "pod_affinity", "spread", "default_spread", "ports", "images")
"""Those without volumes: what is promised of them is in no object yet, so that nobody else could know it."""
PODS = 8
BATCHES = (1, 3, PODS)
"""Pods that are placed before the watch tells of the first of them: in between they are assumed and no more."""


class Step(NamedTuple):
    """One pod: its problem, where ours has put it (empty: nowhere), and else what it was told and whom it would preempt."""

    problem: Json
    node: str
    message: str
    preemption: Json


def waiting(one: Mapping[str, Any], rng: Random) -> Iterator[Json]:
    """The pending pod's specs and those of others, with labels, namespaces and priorities of any of them."""
    others = [one["pod"], *(one.get("pods") or ())]
    specs = [one["pod"], rng.choice(others)]
    for number in range(PODS):
        of, labelled = rng.choice(specs), rng.choice(others)
        spec = {name: value for name, value in of["spec"].items() if name not in ("nodeName", "volumes")}
        if rng.random() < 0.2:
            spec["priority"] = rng.choice((-10, 0, 100))
        metadata = {**of["metadata"], "name": f"next-{number}", "uid": f"uid-next-{number}"}
        metadata["labels"] = labelled["metadata"].get("labels", {})
        metadata["namespace"] = rng.choice((of, labelled))["metadata"]["namespace"]
        metadata = {name: value for name, value in metadata.items() if not name.startswith("deletion")}
        yield {**of, "metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}


def steps(family: str, seed: int) -> list[Step]:
    """The sequence of a family's problem."""
    base, rng, decoder = problem(family, seed), Random(seed), Decoder()
    scene, stands, found = load(base, decoder), list(base.get("pods") or ()), list[Step]()
    assumed, batch = list[Json](), rng.choice(BATCHES)

    def tell_of_batch() -> None:
        for bound in assumed:
            scene.cache.place(decoder.pod(orjson.dumps(bound)))
        assumed.clear()

    for number, document in enumerate(waiting(base, rng)):
        if len(assumed) >= batch:
            tell_of_batch()
        put = {**base, "id": f"{base['id']}-{number}", "pods": list(stands), "pod": document}
        pod = decoder.pod(orjson.dumps(document))
        result = _decided(scene, pod)
        if assumed and not isinstance(result, Placed):
            tell_of_batch()  # of victims the one that started last goes first, and assumed pods have not started
            result = _decided(scene, pod)
        if isinstance(result, Placed):
            # It starts at once: of pods that have not, upstream spares the one that it happens to ask about first.
            running = {"phase": "Running", "startTime": f"2026-01-02T00:00:{number:02}Z"}
            stands.append({**document, "spec": {**document["spec"], "nodeName": result.node}, "status": running})
            assumed.append(stands[-1])
            found.append(Step(put, result.node, "", {}))
        else:
            assert isinstance(result, Unplaced), result
            found.append(Step(put, "", result.message, preemption_of(result)))
    scene.cache.validate()
    return found


def _decided(scene: Scene, pod: Pod) -> Result:
    attempt = scene.cycle.attempt(QueuedPod(pod, queued_s=0.0, attempts=1))
    try:
        next(attempt)
    except StopIteration as end:
        result: Result = end.value
        return result
    raise AssertionError("a plugin asks outside")


def faults(step: Step, answer: Mapping[str, Any]) -> list[str]:
    """What is wrong with a step by the judge's answer to its problem."""
    if not step.node:
        if answer["feasible"]:
            return [f"ours found no node, and {answer['feasible']} are feasible"]
        if "fitError" in answer and _words(answer["fitError"]) != _words(step.message):
            return [f"ours says {step.message!r}, the judge {answer['fitError']!r}"]
        if step.preemption not in answer.get("preemptions", [step.preemption]):
            return [f"ours would preempt {step.preemption}, the judge one of {answer['preemptions']}"]
        return []
    total = answer.get("total") or {}
    if step.node not in answer["feasible"]:
        return [f"ours took {step.node}, which is not feasible: {answer['rejected'].get(step.node)}"]
    if total and total[step.node] != max(total.values()):
        return [f"ours took {step.node} of {total[step.node]}, the best have {max(total.values())}"]
    return []


def _words(sentence: str) -> list[str]:
    """Scalar resources come in no order."""
    return sorted(sentence.replace(".", ",").split(","))
