"""Plugins that learn from what becomes of bound pods, in a whole program beside the embedded API server."""

from __future__ import annotations

from typing import Any

from multisched.model.pod_outcome import PodOutcome, outcome_of
from multisched.testing.builders import make_pod
from tests.unit.shell.program_kit import PODS, Cluster, play

SEEN: list[tuple[str, str, str, str, float, float]] = []


class Learner:
    """Records what it is told."""

    name = "Learner"

    def pre_enqueue(self, pod: Any) -> Any:
        from multisched.framework.status import SUCCESS

        return SUCCESS

    def see_outcome(self, outcome: PodOutcome) -> None:
        pod = outcome.pod
        found = (pod.name, pod.phase, outcome.reason, outcome.message, outcome.began_s, outcome.ended_s)
        if not SEEN or SEEN[-1] != found:
            SEEN.append(found)
        if pod.name == "odd":
            raise RuntimeError("a plugin that fails must cost nothing")


CONFIGURATION = f"""
apiVersion: multisched.io/v1
kind: MultischedConfiguration
domains:
  - name: all
    schedulerNames: [forecast-scheduler]
    nodes: {{rule: rest}}
    profile: {{plugins: {{enabled: [{{name: "{__name__}:Learner"}}]}}}}
"""


def container(**state: Any) -> dict[str, Any]:
    return {"name": "main", "image": "x", "imageID": "", "ready": False, "restartCount": 0, "state": state}


def test_plugin_learns_how_bound_pods_start_fail_and_end() -> None:
    SEEN.clear()

    async def report(cluster: Cluster, name: str, **status: Any) -> None:
        await cluster.send(
            "PATCH", f"{PODS}/{name}/status", {"status": status}, content_type="application/merge-patch+json"
        )
        await cluster.settle(1.0)

    async def scene(cluster: Cluster) -> None:
        await cluster.add_node("n1")
        for name in ("odd", "good", "failing"):
            await cluster.add_pod(name)
        await cluster.settle()
        await report(cluster, "failing", phase="Pending", reason="ProviderFailed", message="m" * 2000)
        running = container(running={"startedAt": "2026-01-01T00:00:10Z"})
        await report(cluster, "good", phase="Running", containerStatuses=[running])
        await report(cluster, "good", conditions=[{"type": "Ready", "status": "True"}])
        times = {"startedAt": "2026-01-01T00:00:10Z", "finishedAt": "2026-01-01T00:00:25Z"}
        await report(
            cluster, "good", phase="Succeeded", containerStatuses=[container(terminated={"exitCode": 0, **times})]
        )
        await report(cluster, "failing", phase="Failed", reason="ProviderFailed", message="gone")

    play(scene, configuration=CONFIGURATION)

    begin = 1767225610.0
    assert [found for found in SEEN if found[0] == "good"] == [
        ("good", "Pending", "", "", 0.0, 0.0),
        ("good", "Running", "", "", begin, 0.0),
        ("good", "Succeeded", "", "", begin, begin + 15),
    ]
    assert [found for found in SEEN if found[0] == "failing"] == [
        ("failing", "Pending", "", "", 0.0, 0.0),
        ("failing", "Pending", "ProviderFailed", "m" * 1024, 0.0, 0.0),
        ("failing", "Failed", "ProviderFailed", "gone", 0.0, 0.0),
    ]
    assert [found[0] for found in SEEN].count("odd") == 1


def test_status_that_cannot_be_read_tells_nothing() -> None:
    pod = make_pod("a")
    assert outcome_of(pod, b'{"status": {"containerStatuses": "none"}}') == PodOutcome(pod)
