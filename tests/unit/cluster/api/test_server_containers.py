"""What a pod without containers answers where a real one would be asked through its kubelet."""

from __future__ import annotations

import pytest

from tests.unit.cluster.server_kit import PODS, add_pod, ask, make_server


@pytest.mark.parametrize("subresource", ["log", "exec", "attach", "portforward"])
def test_container_subresources_return_a_bad_request_with_the_reason(subresource: str) -> None:
    server = make_server()
    add_pod(server, "a")

    status, answer = ask(server, "GET", f"{PODS}/a/{subresource}")
    assert (status, answer["reason"]) == (400, "BadRequest")
    assert "run no containers" in answer["message"]
    assert ask(server, "GET", f"{PODS}/missing/{subresource}")[0] == 404
