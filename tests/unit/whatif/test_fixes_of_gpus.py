"""Smaller demands for GPUs: found where NodeResourcesFit and GpuShare refuse alike, and true."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from multisched.config import loading
from multisched.config.schema import Configuration
from multisched.observe.explain_view import ExplainQuery, Fix, PodView
from multisched.testing.builders import Document, container, node_document, pod_document
from tests.unit.whatif.clusters import ASKED, applied, dump_of

GPU, MILLI, COUNT = "nvidia.com/gpu", "multisched.io/gpu-milli", "multisched.io/gpu-count"
MINE: Mapping[str, Any] = {"schedulerName": "gpu-scheduler"}


@cache
def configured() -> Configuration:
    return loading.parse(
        "apiVersion: multisched.io/v1\nkind: MultischedConfiguration\ndomains: [{name: gpu}]\n", "test"
    )


def node(name: str, gpus: int, cpu: str = "8") -> Document:
    return node_document(name, cpu=cpu, extra={GPU: gpus})


def whole(name: str, gpus: int, *, on: str = "", cpu: str = "1") -> Document:
    return pod_document(name, container(cpu=cpu, extra={GPU: gpus}), node=on, **MINE)


def fraction(name: str, milli: int, count: int = 0, *, on: str = "", held: str = "") -> Document:
    annotations = {MILLI: str(milli)} | ({COUNT: str(count)} if count else {})
    if held:
        annotations |= {"multisched.io/gpu-devices": held, "multisched.io/gpu-allocated-milli": str(milli)}
    return pod_document(name, container(cpu="1"), node=on, annotations=annotations, **MINE)


def explained(*documents: Document, query: ExplainQuery = ASKED) -> PodView:
    return dump_of(*documents, configured=configured()).pod(query)


def smaller(*documents: Document) -> Mapping[str, Fix]:
    """Fixes that ask for less, by their text."""
    fixes = explained(*documents).fixes
    assert fixes is not None
    return {fix.text: fix for fix in fixes if fix.kind in ("request", "annotation")}


ASKING: dict[str, tuple[list[Document], list[str]]] = {
    "whole devices, more than a node has": (
        [node("a", 8), node("b", 4), whole("late", 16)],
        ["lower the nvidia.com/gpu request from 16 to 8"],
    ),
    "whole devices, of which some are held": (
        [node("a", 8), whole("other", 3, on="a"), whole("late", 8)],
        ["lower the nvidia.com/gpu request from 8 to 5"],
    ),
    "whole devices, and too much cpu as well": ([node("a", 4, cpu="2"), whole("late", 8, cpu="4")], []),
    "whole devices beside fractions": ([node("a", 4), fraction("other", 500, on="a", held="0"), whole("late", 8)], []),
    "a fraction": (
        [node("a", 1), fraction("other", 700, on="a", held="0"), fraction("late", 600)],
        ["lower the annotation multisched.io/gpu-milli from 600 to 300"],
    ),
    "a fraction of too many devices": (
        [node("a", 8), fraction("late", 600, 9)],
        ["lower the annotation multisched.io/gpu-count from 9 to 8"],
    ),
    "a fraction of too many devices, some of which are held": (
        [node("a", 2), fraction("other", 700, on="a", held="0"), fraction("late", 600, 2)],
        [
            "lower the annotation multisched.io/gpu-count from 2 to 1",
            "lower the annotation multisched.io/gpu-milli from 600 to 300",
        ],
    ),
    "a fraction beside whole devices": ([node("a", 4), whole("other", 1, on="a"), fraction("late", 600)], []),
}


@pytest.mark.parametrize("case", ASKING)
def test_smaller_gpu_request_is_found_and_fits(case: str) -> None:
    documents, texts = ASKING[case]
    found = smaller(*documents)
    assert list(found) == texts
    for fix in found.values():
        view = explained(*applied(documents, fix), query=ExplainQuery("default", "late"))
        assert view.now is not None
        assert view.now.outcome == "placed", fix


def test_annotation_request_is_lowered_if_the_pod_is_pending() -> None:
    (fix,) = smaller(*ASKING["a fraction"][0]).values()
    assert fix.command == "kubectl -n default annotate pod late multisched.io/gpu-milli=300 --overwrite"
    assert (fix.kind, fix.size) == ("annotation", 0.5)


def test_gpu_message_ends_with_the_plugin_text() -> None:
    """Behind another plugin's refusal kube-scheduler's DynamicResources says "not found", which is about its own state."""
    pod = pod_document("late", container(), annotations={COUNT: "2"}, **MINE)
    view = dump_of(node("n1", 1), pod, configured=configured()).pod(ASKED)
    assert view.now is not None
    assert view.now.message.endswith("write how much of each device the pod takes."), view.now.message
