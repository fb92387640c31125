"""No two processes are one holder of a lease, also when a container is restarted under its pod's name."""

from __future__ import annotations

import pytest

from multisched.app import default_identity


@pytest.mark.parametrize("pod_name", ["multisched-7d9f-x2x", ""])
def test_every_start_is_another_identity(pod_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_NAME", pod_name)
    first, second = default_identity(), default_identity()
    assert first != second
    assert first.startswith(pod_name)
    assert len(first.removeprefix(pod_name)) >= 9
