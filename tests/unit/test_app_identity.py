"""No two processes are one holder of a lease, also when a container is restarted under its pod's name."""

from __future__ import annotations

import pytest

from multisched.app import default_identity, restart_command


@pytest.mark.parametrize("pod_name", ["multisched-7d9f-x2x", ""])
def test_every_start_has_another_identity(pod_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_NAME", pod_name)
    first, second = default_identity(), default_identity()
    assert first != second
    assert first.startswith(pod_name)
    assert len(first.removeprefix(pod_name)) >= 9


@pytest.mark.parametrize(
    ("pod", "namespace", "command"),
    [
        ("multisched-7d9c5b6f4d-x2x9z", "system", "kubectl -n system rollout restart deployment/multisched"),
        ("my-own-scheduler-7d9c5b6f4d-x2x9z", "a", "kubectl -n a rollout restart deployment/my-own-scheduler"),
        ("multisched-0", "system", ""),
        ("multisched-7d9c5b6f4d-x2x9z", "", ""),
        ("", "", "kill 47, and when it has ended: multisched run --config 'my file'"),
    ],
)
def test_restart_command_is_known_for_a_pod_of_a_deployment(pod: str, namespace: str, command: str) -> None:
    environment = {"POD_NAME": pod, "POD_NAMESPACE": namespace}
    assert restart_command(environment, 47, ["multisched", "run", "--config", "my file"]) == command
