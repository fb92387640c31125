"""Which pods of a borrower in another process may be placed on lent rows: those that need nothing but what slices have."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from multisched.model.decode import Decoder
from multisched.plugins.loans.slices.unsliced_needs import unsliced_need

TERM = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "a"}}}
REQUIRED, PREFERRED = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)


def need(requests: dict[str, Any] | None = None, ports: tuple[int, ...] = (), **spec: Any) -> str:
    container = {
        "name": "c",
        "resources": {"requests": requests or {"cpu": 1}},
        "ports": [{"containerPort": port, "hostPort": port} for port in ports],
    }
    document = {
        "metadata": {"name": "p", "namespace": "default", "uid": "u", "resourceVersion": "7"},
        "spec": {"containers": [container], **spec},
    }
    return unsliced_need(Decoder().pod(orjson.dumps(document)))


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        ({"requests": {"cpu": 1, "nvidia.com/gpu": 1}}, "nvidia.com/gpu"),
        ({"requests": {"ephemeral-storage": "1Gi"}}, "ephemeral-storage"),
        ({"affinity": {"podAffinity": {REQUIRED: [TERM]}}}, "podAffinity"),
        ({"affinity": {"podAntiAffinity": {REQUIRED: [TERM]}}}, "podAntiAffinity"),
        ({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]}, "DoNotSchedule"),
        ({"ports": (8080,)}, "host port 8080"),
        ({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}, "spec.volumes"),
        ({"resourceClaims": [{"name": "r", "resourceClaimName": "c"}]}, "spec.resourceClaims"),
    ],
)  # fmt: skip
def test_pod_that_needs_more_than_a_slice_is_refused(pod: dict[str, Any], words: str) -> None:
    assert words in need(**pod)


@pytest.mark.parametrize(
    "pod",
    [
        {"requests": {"cpu": "500m", "memory": "1Gi"}},
        {"affinity": {"podAffinity": {PREFERRED: [{"weight": 1, "podAffinityTerm": TERM}]}}},
        {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}]},
        {"volumes": [{"name": "v", "emptyDir": {}}, {"name": "s", "secret": {"secretName": "s"}}]},
        {"nodeSelector": {"kind": "gpu"}},
    ],
)
def test_pod_that_needs_only_what_slices_have_is_accepted(pod: dict[str, Any]) -> None:
    assert need(**pod) == ""
