"""What is said of labels and annotations that have no effect, and which keys there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from multisched.model.own_keys import (
    OWN_KEYS,
    REMARKS_MAX,
    remarks_of_node,
    remarks_of_pod,
    unclear_consents,
)
from multisched.testing.builders import make_node, make_pod

ROOT = Path(__file__).parents[3]
GPU = ("GpuShare",)
OF_OTHERS = {
    "address",
    "guarantee",
    "in-force",
    "lift-quotas",
    "node-selection",
    "nodes-seen",
    "scrapers",
    "slices",
    "v1",
    "v1alpha1",
    "weight",
}
"""Of Leases, namespaces, quotas and SliceSets, and the versions of files."""


@pytest.mark.parametrize(
    ("labels", "annotations", "plugins", "remarks"),
    [
        ({"app": "web"}, {"example.com/gpu-mili": "1"}, GPU, []),
        ({"multisched.io/service": "web"}, {"multisched.io/gpu-milli": "250", "multisched.io/repair": "true"}, GPU, []),
        (
            {"multisched.io/gpu-milli": "250"},
            {},
            GPU,
            ["label multisched.io/gpu-milli has no effect: it is read as an annotation; write it there"],
        ),
        (
            {},
            {"multisched.io/service": "web"},
            GPU,
            ["annotation multisched.io/service has no effect: it is read as a label; write it there"],
        ),
        (
            {"multisched.io/domain": "gpu"},
            {},
            GPU,
            ["label multisched.io/domain has no effect on a pod: it is read on nodes"],
        ),
        (
            {},
            {"multisched.io/gpu-mili": "250"},
            GPU,
            [
                (
                    "annotation multisched.io/gpu-mili has no effect: multisched reads no such key of pods; did you mean the"
                    " annotation multisched.io/gpu-milli?"
                )
            ],
        ),
        (
            {"multisched.io/x": ""},
            {},
            GPU,
            ["label multisched.io/x has no effect: multisched reads no such key of pods; remove it"],
        ),
        (
            {},
            {"multisched.io/repair": "False"},
            (),
            ['annotation multisched.io/repair is "False", which is neither "true" nor "false": repair keeps the pod'],
        ),
        (
            {},
            {"multisched.io/gpu-milli": "250"},
            (),
            [
                (
                    "annotation multisched.io/gpu-milli has no effect: domain work has no plugin GpuShare; use the"
                    " schedulerName of a domain that has it"
                )
            ],
        ),
    ],
)
def test_pod_key_without_effect_is_reported(
    labels: dict[str, str], annotations: dict[str, str], plugins: tuple[str, ...], remarks: list[str]
) -> None:
    assert remarks_of_pod(make_pod("p", labels=labels, annotations=annotations), "work", plugins) == remarks


@pytest.mark.parametrize(
    ("labels", "annotations", "remarks"),
    [
        ({"multisched.io/domain": "gpu", "multisched.io/gpu-indices": "honoured"}, {}, []),
        ({}, {"multisched.io/capacity-log": "40M"}, []),
        (
            {"multisched.io/gpu-indices": "Honoured"},
            {},
            [
                'label multisched.io/gpu-indices is "Honoured", not "honoured": the kubelet is assumed to choose the devices'
            ],
        ),
        (
            {},
            {"multisched.io/domain": "gpu"},
            ["annotation multisched.io/domain has no effect: it is read as a label; write it there"],
        ),
        (
            {"multisched.io/gpu-milli": "250"},
            {},
            ["label multisched.io/gpu-milli has no effect on a node: it is read on pods"],
        ),
    ],
)
def test_node_key_without_effect_is_reported(
    labels: dict[str, str], annotations: dict[str, str], remarks: list[str]
) -> None:
    assert remarks_of_node(make_node("n", labels=labels, annotations=annotations)) == remarks


def test_number_of_key_reports_per_object_is_limited() -> None:
    labels = {f"multisched.io/{at}": "" for at in range(REMARKS_MAX + 1)}
    assert len(remarks_of_pod(make_pod("p", labels=labels), "work", GPU)) == REMARKS_MAX


def test_unclear_values_of_foreign_keys_are_reported() -> None:
    key = "cluster-autoscaler.kubernetes.io/safe-to-evict"
    assert unclear_consents(make_pod("p", annotations={key: "true"})) == []
    assert unclear_consents(make_pod("p", annotations={key: "no"})) == [
        f'annotation {key} is "no", which is neither "true" nor "false": repair keeps the pod'
    ]


def test_table_of_keys_equals_sources_and_reference() -> None:
    read: set[str] = set()
    for folder in ("multisched", "domains"):
        for path in (ROOT / folder).rglob("*.py"):
            if path.name != "own_keys.py":
                read |= set(re.findall(r'"multisched\.io/([a-z0-9-]+)[":]', path.read_text()))
    known = {one.key.removeprefix("multisched.io/") for one in OWN_KEYS}
    assert read - OF_OTHERS == known
    rows = [line for line in (ROOT / "docs/reference.md").read_text().splitlines() if "`multisched.io/" in line]
    for one in OWN_KEYS:
        named = [row for row in rows if row.startswith(f"| {one.holder.value}") and f"`{one.key}" in row]
        assert any(f"{one.form.value} `" in row for row in named), one.key
