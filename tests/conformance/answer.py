"""Answers scheduling problems with the product's own runner, caches and plugins.

    zcat tests/conformance/problems.jsonl.gz | python tests/conformance/answer.py [--warm] > answers.jsonl
    python tests/conformance/answer.py --compare [--family NAME] [--warm] [--show 3]

Reads one problem per line, prints one answer per line, in the form of answers.jsonl (see README.md). `--warm` lets each
problem's class cache live through changes that are taken back before the answer that counts. `--compare` answers the
recorded problems instead (or those of `--problems FILE --answers FILE`) and prints, per family, how many answers are
exactly kube-scheduler's, and the first differences; it ends with 1 if there are any.

A line that cannot be answered gets an answer with `raised`, which says why, is named on stderr, and the next ones are
answered; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import orjson

from multisched.config.kube.convert import profile_of
from multisched.config.plugins import plugin_registry
from multisched.cycle.classes.equivalence_class import EquivalenceClass
from multisched.cycle.results import Unplaced
from multisched.cycle.scheduling_cycle import SchedulingCycle
from multisched.framework.context import PluginContext
from multisched.framework.points import CycleView, PreFilterExtensions, QueuedPod
from multisched.framework.registry import PluginSet, build_profile
from multisched.framework.runner import PluginFailure, Runner
from multisched.framework.status import SUCCESS, Code, Status
from multisched.model.decode import Decoder
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Image, Pod
from multisched.model.selectors import NO_EXECUTE, NO_SCHEDULE, PREFER_NO_SCHEDULE, Taint
from multisched.state.cluster_cache import ClusterCache
from multisched.state.domain_rows import DomainRows
from multisched.state.nominator import Nominator
from multisched.state.overlay import OverlayCycle
from tests.conformance.families import CLAIMED
from tests.conformance.vectors import ANSWERS_FILE, PROBLEMS_FILE, differences, read_lines

ANSWER_OPTIONS = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS
DIFFERENCES_SHOWN = 6
"""Lines per problem that `--compare` prints."""

REGISTRY = plugin_registry()
default_profile = cache(lambda: profile_of(None))
OBJECT_FIELDS = {
    "namespaces": ObjectKind.NAMESPACE,
    "services": ObjectKind.SERVICE,
    "replicaSets": ObjectKind.REPLICA_SET,
    "statefulSets": ObjectKind.STATEFUL_SET,
    "replicationControllers": ObjectKind.REPLICATION_CONTROLLER,
    "pdbs": ObjectKind.POD_DISRUPTION_BUDGET,
    "pvs": ObjectKind.PERSISTENT_VOLUME,
    "pvcs": ObjectKind.PERSISTENT_VOLUME_CLAIM,
    "storageClasses": ObjectKind.STORAGE_CLASS,
    "csiNodes": ObjectKind.CSI_NODE,
    "csiDrivers": ObjectKind.CSI_DRIVER,
    "csiStorageCapacities": ObjectKind.CSI_STORAGE_CAPACITY,
    "volumeAttachments": ObjectKind.VOLUME_ATTACHMENT,
}
"""Field of a problem -> the kind of the objects in it."""

Problem = Mapping[str, Any]
Answer = dict[str, Any]


class NullObserver:
    """A PluginObserver for one-shot runs: a failure shows in the answer itself."""

    def plugin_ran(self, plugin: str, point: str, seconds: float) -> None:
        pass

    def plugin_failed(self, plugin: str, point: str, error: BaseException | str) -> None:
        pass


class NoWaitingPods:
    """No pod is held by Permit here."""

    def waiting(self) -> tuple[Pod, ...]:
        return ()

    def allow(self, uid: str, plugin: str) -> bool:
        return False

    def reject(self, uid: str, plugin: str, reason: str) -> bool:
        return False


@dataclass
class Scene:
    """One problem, loaded."""

    cache: ClusterCache
    rows: DomainRows
    cycle: SchedulingCycle
    plugins: PluginSet
    runner: Runner
    nominator: Nominator
    pod: Pod


def load(problem: Problem, decoder: Decoder) -> Scene:
    """Builds the plugins, then brings a problem's objects by way of their JSON, as the watches of the program would."""
    cache, nominator = ClusterCache(), Nominator()
    rows = DomainRows("conformance", lambda node: True)
    cache.add_domain(rows)
    context = PluginContext("conformance", cache.nodes, NoWaitingPods(), cache.ledgers, cache.objects)
    configuration = problem.get("profile")
    profile = profile_of(configuration) if configuration else default_profile()
    plugins = build_profile(profile, REGISTRY, context)
    runner = Runner(NullObserver(), lambda: 0.0)
    cycle = SchedulingCycle(plugins, runner, cache, rows, nominator)
    for field, kind in OBJECT_FIELDS.items():
        for document in problem.get(field) or ():
            cache.objects.set(kind, kind.definition.decode(orjson.dumps(document)))
    for node in problem.get("nodes") or ():
        cache.set_node(decoder.node(orjson.dumps(node)))
    for document in problem.get("pods") or ():
        pod = decoder.pod(orjson.dumps(document))
        if pod.is_terminal:
            continue
        if pod.node:
            cache.place(pod)
        elif pod.nominated_node:
            nominator.set(pod)
    return Scene(cache, rows, cycle, plugins, runner, nominator, decoder.pod(orjson.dumps(problem["pod"])))


def answer(problem: Problem, decoder: Decoder, *, warm: bool = False) -> Answer:
    """What the product says to one problem."""
    return cold_and_warm(problem, decoder)[1] if warm else {"id": problem["id"], **evaluate(load(problem, decoder))}


def cold_and_warm(problem: Problem, decoder: Decoder) -> tuple[Answer, Answer]:
    """The answer from fresh caches, and that from caches which have seen everything change and change back."""
    scene = load(problem, decoder)
    cold = evaluate(scene)
    disturb(scene)
    return {"id": problem["id"], **cold}, {"id": problem["id"], **evaluate(scene)}


def disturb(scene: Scene) -> None:
    """Changes every kind of thing an answer hangs on, evaluates, and takes the changes back."""
    nodes = [node for _, node in scene.cache.nodes.live_rows()]
    placed = [pod for row, _ in scene.cache.nodes.live_rows() for pod in scene.cache.nodes.pods_on(row)]
    for index, node in enumerate(nodes):
        taint = Taint("conformance/changed", effect=(NO_SCHEDULE, PREFER_NO_SCHEDULE, NO_EXECUTE)[index % 3])
        changed = msgspec.structs.replace(
            node,
            taints=(*node.taints, taint),
            is_unschedulable=not node.is_unschedulable,
            labels={k: v for k, v in node.labels.items() if (len(k) + index) % 2},
            allocatable={k: v // 2 for k, v in node.allocatable.items()},
            images=(*node.images, Image(("registry.example/changed:v1",), 10**8)),
        )
        scene.cache.set_node(changed)
    for pod in placed[::2]:
        scene.cache.remove(pod.uid)
    objects = {kind: list(scene.cache.objects.all(kind)) for kind in ObjectKind}
    for kind, items in objects.items():
        for item in items[::2]:
            scene.cache.objects.remove(kind, item.namespace, item.name)
    evaluate(scene)
    for kind, items in objects.items():
        for item in items[::2]:
            scene.cache.objects.set(kind, item)
    for node in reversed(nodes):
        scene.cache.set_node(node)
    # All come anew, in their first order: of equal victims, upstream spares the one that came first.
    for pod in placed[1::2]:
        scene.cache.remove(pod.uid)
    for pod in placed:
        scene.cache.place(pod)
    scene.cache.validate()


def evaluate(scene: Scene) -> Answer:
    """Filters and scores the pod through the class cache; everything but the id."""
    if scene.pod.malformed:
        return {"feasible": [], "rejected": {}, "error": f"the pod cannot be scheduled: {scene.pod.malformed}"}
    try:
        pod_class = scene.cycle.classes.find(scene.pod, 1)
        if pod_class.refusal is not None:
            return {"preFilter": _status(pod_class.refusal), "feasible": [], "rejected": {}, **refusal_of(scene)}
        names = [scene.cache.nodes.node(int(row)).name for row in pod_class.rows]
        refused = refusals(scene, pod_class)
        result: Answer = {
            "feasible": sorted(name for name, status in zip(names, refused, strict=True) if status.is_success),
            "rejected": {n: _status(s) for n, s in zip(names, refused, strict=True) if not s.is_success},
        }
        if pod_class.narrowed is not None:
            result["preFilterNodes"] = sorted(pod_class.narrowed)
        if not result["feasible"]:
            return {**result, **refusal_of(scene)}
        feasible = np.array([status.is_success for status in refused], np.bool_)
        pod_class = scene.cycle.classes.reduced(pod_class, feasible)  # rows promised to other pods are left out
        return {**result, **scored(scene, pod_class, names, feasible.tolist())}
    except PluginFailure as failure:
        return {"feasible": [], "rejected": {}, "error": failure.status.message}


def scored(scene: Scene, pod_class: EquivalenceClass, names: list[str], feasible: list[bool]) -> Answer:
    """The scores; or why there are none, which leaves the nodes as they were filtered."""
    try:
        scene.cycle.classes.score(pod_class)
    except PluginFailure as failure:
        return {"error": failure.status.message}
    return scores(pod_class, names, feasible)


def refusal_of(scene: Scene) -> Answer:
    """What one attempt of the cycle says of a pod that fits nowhere, and whom it would preempt."""
    attempt = scene.cycle.attempt(QueuedPod(scene.pod, queued_s=0.0, attempts=1))
    try:
        next(attempt)
    except StopIteration as end:
        result = end.value
        assert isinstance(result, Unplaced), f"the cycle found a place that answer.py did not: {result}"
        return {"fitError": result.message, "preemptions": [preemption_of(result)]}
    raise AssertionError("no plugin of these profiles asks outside")


def preemption_of(result: Unplaced) -> dict[str, Any]:
    """The node that PostFilter nominated, and its victims."""
    victims = getattr(result, "victims", ())
    return {"nominatedNode": result.nominated_node or "", "victims": sorted(f"{v.namespace}/{v.name}" for v in victims)}


def scores(pod_class: EquivalenceClass, names: list[str], feasible: list[bool]) -> Answer:
    """Weighted scores by plugin, and their sum, over the feasible nodes."""
    at = [i for i, passes in enumerate(feasible) if passes]
    by_plugin = {
        column.plugin.name: {names[i]: column.weight * int(column.final[i]) for i in at}
        for column in pod_class.scores
        if not column.is_skipped
    }
    return {"scores": by_plugin, "total": {names[i]: int(pod_class.total[i]) for i in at}}


def refusals(scene: Scene, pod_class: EquivalenceClass) -> list[Status]:
    """Per row of the class the first refusing status; nominated pods are counted in first, as upstream does."""
    found = [SUCCESS] * len(pod_class.rows)
    for column in pod_class.filters:
        for at in np.flatnonzero(column.codes):
            if found[at].is_success:
                found[at] = column.plugin.reasons.status(int(column.codes[at])).by(column.plugin.name)
    for node, ahead in scene.nominator.ahead_of(scene.pod):
        row = scene.cache.nodes.row_of(node)
        for at in np.flatnonzero(pod_class.rows == (-1 if row is None else row)):
            beside = _filter_after_adding(scene, pod_class, int(pod_class.rows[at]), ahead)
            found[at] = found[at] if beside.is_success else beside
    return found


def _filter_after_adding(scene: Scene, pod_class: EquivalenceClass, row: int, ahead: Iterable[Pod]) -> Status:
    extensions = [
        p for p in scene.plugins.pre_filter if isinstance(p, PreFilterExtensions) and p.name not in pod_class.skipped
    ]
    overlay = OverlayCycle(scene.cache.nodes, pod_class.view.state, scene.pod, extensions, scene.runner, 1)
    for other in ahead:
        overlay.add_pod(other, row)
    view: CycleView = overlay.view
    for column in pod_class.filters:
        code = int(scene.runner.filter(column.plugin, view, scene.pod, np.array([row], np.intp))[0])
        if code:
            return column.plugin.reasons.status(code).by(column.plugin.name)
    return SUCCESS


def _status(status: Status) -> dict[str, Any]:
    assert status.code is not Code.SUCCESS
    return {"code": status.code.value, "plugin": status.plugin, "reasons": list(status.reasons)}


def attempted(problem: Problem, decoder: Decoder, *, warm: bool = False) -> Answer:
    """`answer`, or what was raised instead of one: a comparison goes on over a plugin that fails."""
    try:
        return answer(problem, decoder, warm=warm)
    except Exception as error:  # noqa: BLE001  (one problem ends here, whatever its plugins do; the error is its answer)
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
        return raised(problem["id"], text)


def compare(problems: Iterable[Problem], answers: Mapping[str, Answer], *, warm: bool, show: int) -> bool:
    """Prints the table; True if every answer is the recorded one."""
    decoder = Decoder()
    exact: Counter[str] = Counter()
    total: Counter[str] = Counter()
    first: defaultdict[str, list[str]] = defaultdict(list)
    for problem in problems:
        family = problem["family"]
        total[family] += 1
        lines = differences(attempted(problem, decoder, warm=warm), answers[problem["id"]])
        if not lines:
            exact[family] += 1
        elif len(first[family]) < show:
            first[family].append("\n".join(f"    {line}" for line in (problem["id"], *lines[:DIFFERENCES_SHOWN])))
    for family, count in total.items():
        claimed = "claimed" if family in CLAIMED else ""
        print(f"{family:16} {exact[family]:4}/{count:<4} {claimed}")
        for text in first[family]:
            print(text)
    print(f"{'all':16} {exact.total():4}/{total.total():<4}")
    return exact.total() == total.total()


def print_answers(lines: Iterable[bytes], *, warm: bool) -> bool:
    """One answer per line, flushed, so that whoever asks over a pipe is not kept waiting; True if none was raised.

    A line that is no problem, and a problem that cannot be answered, are named on stderr, and answered with `raised`.
    """
    decoder, is_whole = Decoder(), True
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        found = answer_line(line, number, decoder, warm=warm)
        if "raised" in found:
            is_whole = False
            print(f"line {number}, problem {found['id']!r}: {found['raised']}", file=sys.stderr)
        sys.stdout.buffer.write(orjson.dumps(found, option=ANSWER_OPTIONS) + b"\n")
        sys.stdout.buffer.flush()
    return is_whole


def answer_line(line: bytes, number: int, decoder: Decoder, *, warm: bool = False) -> Answer:
    """The answer to one line of a problems file, whatever the line holds."""
    try:
        problem = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return raised(f"line-{number}", f"not JSON: {error}")
    if not isinstance(problem, dict):
        return raised(f"line-{number}", f"a problem is an object, not {type(problem).__name__}")
    asked = {"id": f"line-{number}", **problem}
    if not isinstance(problem.get("pod"), dict):
        return raised(asked["id"], "the problem has no pod")
    return attempted(asked, decoder, warm=warm)


def raised(one: object, text: str) -> Answer:
    return {"id": one, "feasible": [], "rejected": {}, "raised": text}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warm", action="store_true", help="answer from class caches that have seen changes")
    parser.add_argument("--compare", action="store_true", help="compare with recorded answers instead of reading stdin")
    parser.add_argument("--family", default="", help="only problems of this family")
    parser.add_argument("--id", default="", help="only this problem")
    parser.add_argument("--show", type=int, default=3, help="differing problems to show per family")
    parser.add_argument("--problems", type=Path, default=PROBLEMS_FILE, help="one problem per line, .gz or not")
    parser.add_argument("--answers", type=Path, default=ANSWERS_FILE, help="one answer per line, .gz or not")
    options = parser.parse_args()
    if not options.compare:
        sys.exit(0 if print_answers(sys.stdin.buffer, warm=options.warm) else 1)
    problems = (
        p for p in read_lines(options.problems) if options.family in ("", p["family"]) and options.id in ("", p["id"])
    )
    answers = {one["id"]: one for one in read_lines(options.responses)}
    sys.exit(0 if compare(problems, answers, warm=options.warm, show=options.show) else 1)


if __name__ == "__main__":
    main()
