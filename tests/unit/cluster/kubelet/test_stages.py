"""What a stage file may say, and how it is refused."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from multisched.cluster.kubelet.stages import Condition, Meta, StagedObject, StageError, choose, load_stages
from multisched.cluster.kubelet.stages_builtin import BUILTIN, builtin_stages


def a_stage(spec: str, kind: str = "Pod", name: str = "s") -> str:
    head = f"apiVersion: multisched.io/v1\nkind: Stage\nmetadata: {{name: {name}}}\nspec:\n"
    return f"{head}  resourceRef: {{kind: {kind}}}\n{spec}"


def a_subject(phase: str = "Running", **meta: object) -> StagedObject:
    metadata = Meta(name="p", namespace="default", **meta)  # type: ignore[arg-type]
    return StagedObject(
        metadata=metadata, phase=phase, conditions=(Condition("Ready", "True"),), restart_policy="Never"
    )


@pytest.mark.parametrize("name", sorted(BUILTIN))
def test_every_built_in_set_loads_and_moves_a_new_pod_to_running(name: str) -> None:
    stages = builtin_stages(name)
    found = stages.matching(a_subject(phase="Pending"), kind="Pod")

    assert [stage.next.phase for stage in found] == ["Running"]


def test_an_unknown_built_in_set_is_refused_with_the_known_ones() -> None:
    with pytest.raises(StageError, match="fast, general, chaos"):
        builtin_stages("slow")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "0 stages"),
        ("a: [", "not YAML"),
        (a_stage("  nxt: {phase: Running}"), "did you mean 'next'"),
        (a_stage("  next: {}"), "does nothing to a pod"),
        (a_stage("  next: {ready: true}\n  weight: -1"), "weight: -1 is negative"),
        (a_stage("  next: {phase: Running, delete: true}"), "exclude each other"),
        (a_stage("  next: {statusTemplate: x}"), "Go templates are not supported"),
        (a_stage("  next: {phase: Running}", kind="Node"), "a node takes ready"),
        (
            a_stage("  next: {ready: true, event: {reason: Booted}}", kind="Node"),
            "a node takes ready, reason and message",
        ),
        (a_stage("  delay: {durationMilliseconds: -5}\n  next: {delete: true}"), "-5 is out of range"),
        (
            a_stage("  selector: {matchExpressions: [{key: .spec.foo, operator: Exists}]}\n  next: {delete: true}"),
            "key '.spec.foo' is not known",
        ),
        (
            a_stage("  selector: {matchExpressions: [{key: .status.phase, operator: In}]}\n  next: {delete: true}"),
            "give at least one value",
        ),
        (a_stage("  next: {delete: true}") + "\n---\n" + a_stage("  next: {delete: true}"), "used twice"),
    ],
)
def test_invalid_stage_file_is_refused_with_position_and_fix(text: str, message: str) -> None:
    with pytest.raises(StageError, match=message) as refused:
        load_stages(text, source="stages.yaml")

    assert "stages.yaml" in str(refused.value)


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ("matchLabels: {app: web}", True),
        ("matchLabels: {app: db}", False),
        ("matchAnnotations: {note: x}", True),
        ("matchExpressions: [{key: .status.phase, operator: In, values: [Running]}]", True),
        ("matchExpressions: [{key: .metadata.deletionTimestamp, operator: Exists}]", False),
        ("matchExpressions: [{key: .spec.nodeName, operator: DoesNotExist}]", True),
        ("""matchExpressions: [{key: '.metadata.labels["app"]', operator: NotIn, values: [web]}]""", False),
        (
            (
                """matchExpressions: [{key: '.status.conditions.[] | select( .type == "Ready" ) | .status', """
                """operator: In, values: ["True"]}]"""
            ),
            True,
        ),
    ],
)
def test_a_selector_reads_labels_annotations_fields_and_conditions(selector: str, matches: bool) -> None:
    stages = load_stages(a_stage(f"  selector:\n    {selector}\n  next: {{delete: true}}"), source="s")
    subject = a_subject(labels={"app": "web"}, annotations={"note": "x"})

    assert bool(stages.matching(subject, kind="Pod")) is matches


def test_stages_are_chosen_by_weight_or_else_the_first() -> None:
    heavy, light = a_stage("  weight: 3\n  next: {delete: true}", name="h"), a_stage("  next: {delete: true}", name="l")
    stages = load_stages(heavy + "\n---\n" + light, source="s").pods
    rng = Random(5)
    drawn = Counter(stage.name for stage in (choose(stages, rng) for _ in range(4000)) if stage is not None)

    assert 2800 <= drawn["h"] <= 3200
    assert drawn.total() == 4000
    weightless = load_stages(
        a_stage("  weight: 0\n  next: {delete: true}", name="a")
        + "\n---\n"
        + a_stage("  weight: 0\n  next: {delete: true}", name="b"),
        source="s",
    ).pods
    assert {choose(weightless, rng) for _ in range(20)} == {weightless[0]}
    assert choose((), rng) is None


def test_delays_are_fixed_uniform_or_read_from_an_annotation() -> None:
    text = """  delay: {durationMilliseconds: 1000, jitterDurationMilliseconds: 3000, durationFrom: {annotation: secs}}
  next: {delete: true}"""
    (stage,) = load_stages(a_stage(text), source="s").pods
    rng = Random(5)
    drawn = [stage.draw_delay_s(Meta(), rng) for _ in range(500)]

    assert 1.0 <= min(drawn) < 1.1
    assert 2.9 < max(drawn) <= 3.0
    assert stage.draw_delay_s(Meta(annotations={"secs": "7.5"}), rng) == 7.5
    assert stage.draw_delay_s(Meta(annotations={"secs": "-3"}), rng) == 0.0
    assert 1.0 <= stage.draw_delay_s(Meta(annotations={"secs": "soon"}), rng) <= 3.0
