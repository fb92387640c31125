"""The metrics API, page by page: what each pod uses, or why that is not known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from multisched.client import pod_metrics
from multisched.client.pod_metrics import PATH, MetricsApi
from multisched.framework.measures import MeterError, PodUse
from multisched.model.wire import AnswerLostError, Response, Transport
from tests.unit.client.scripted import ScriptedTransport


class Pages(ScriptedTransport):
    """Answers the requests one after the other."""

    def __init__(self, *answers: Response | Exception) -> None:
        super().__init__()
        self._answers = list(answers)
        self.paths: list[str] = []

    async def request(self, method: str, path: str, **more: Any) -> Response:
        self.paths.append(path)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def page(items: Sequence[object], following: str = "") -> Response:
    return Response(200, orjson.dumps({"kind": "PodMetricsList", "metadata": {"continue": following}, "items": items}))


def metrics(name: str, *usage: dict[str, str]) -> dict[str, object]:
    return {
        "metadata": {"namespace": "shop", "name": name},
        "containers": [{"name": "c", "usage": one} for one in usage],
    }


async def test_pod_metrics_sum_containers_over_all_pages() -> None:
    server = Pages(
        page([metrics("a", {"cpu": "250m", "memory": "1Mi"}, {"cpu": "1500000n", "memory": "1024Ki"})], "x/1="),
        page([metrics("b", {"cpu": "1", "memory": "5"}), metrics("c", {"cpu": "7u", "memory": "0"})], "y"),
        page([metrics("idle", {"cpu": "0", "memory": "9"})]),
    )
    transport: Transport = server
    assert await MetricsApi(transport).pods() == (
        PodUse("shop", "a", 0.2515, 2 * 1024 * 1024),
        PodUse("shop", "b", 1.0, 5.0),
        PodUse("shop", "c", 7e-6, 0.0),
        PodUse("shop", "idle", 0.0, 9.0),
    )
    assert server.paths == [f"{PATH}?limit=1000{more}" for more in ("", "&continue=x%2F1%3D", "&continue=y")]


async def test_pods_with_invalid_metrics_are_skipped() -> None:
    bad = [
        {"cpu": "much", "memory": "1"},
        {"cpu": "1"},
        {"memory": "1"},
        {"cpu": "-1", "memory": "1"},
        {"cpu": "1", "memory": "-1"},
        {"cpu": "xn", "memory": "1"},
        {"cpu": "-1n", "memory": "1"},
        {"cpu": "1-n", "memory": "1"},
    ]
    assert (
        await MetricsApi(Pages(page([metrics(f"p{n}", one) for n, one in enumerate(bad)] + [metrics("q")]))).pods()
        == ()
    )


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            Response(404, b"404 page not found"),
            "metrics.k8s.io: not served by this API server (404); install metrics-server, or remove the source",
        ),
        (Response(503, b"unavailable"), "metrics.k8s.io: HTTP 503: unavailable"),
        (Response(500, b"\xff" + b"x" * 999), "metrics.k8s.io: HTTP 500: \N{REPLACEMENT CHARACTER}" + "x" * 199),
        (
            Response(200, b"<html>"),
            "metrics.k8s.io: the response is not a list of PodMetrics: JSON is malformed: invalid character (byte 0)",
        ),
        (AnswerLostError("reset"), "metrics.k8s.io: no answer: reset"),
    ],
)
async def test_invalid_metrics_response_is_reported(answer: Response | Exception, words: str) -> None:
    with pytest.raises(MeterError) as caught:
        await MetricsApi(Pages(answer)).pods()
    assert str(caught.value) == words


async def test_number_of_measured_pods_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_metrics, "PODS_MAX", 3)
    few, more = ([metrics(f"p{at}", {"cpu": "1", "memory": "1"}) for at in range(count)] for count in (2, 1))
    assert len(await MetricsApi(Pages(page(few, "next"), page(more))).pods()) == 3
    with pytest.raises(MeterError, match=r"metrics\.k8s\.io: returns more than 3 pods"):
        await MetricsApi(Pages(page(few, "next"), page([*more, *more]))).pods()


@pytest.mark.parametrize("body", [b"[]", b"{", orjson.dumps({"items": [7]})])
async def test_non_list_metrics_response_is_refused(body: bytes) -> None:
    with pytest.raises(MeterError, match=r"^metrics\.k8s\.io: the response is not a list of PodMetrics: "):
        await MetricsApi(Pages(Response(200, body))).pods()
