"""Makes the dump of docs/quotas.md: `python -m tests.integration.docs.third_step`. A test says when it is stale.

It is the third step of the walk-through, before the fourth team takes its own back: a moment that no cluster stays in.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import yaml

QUOTAS: Final = Path(__file__).parents[3] / "config" / "examples" / "quotas"
DUMP: Final = QUOTAS / "third-step.json"
RUNNING: Final = (3, 3, 2, 0)
"""Of each team's five pods."""


def dump() -> str:
    """As kubectl writes a list, an object in each line."""
    node, tree, nginx = (yaml.safe_load((QUOTAS / f"{name}.yaml").read_text()) for name in ("node", "teams", "nginx"))
    node["status"] = {key: {name: str(one) for name, one in value.items()} for key, value in node["status"].items()}
    tree["status"] = {"conditions": [{"type": "InForce", "status": "True", "reason": "InForce"}]}
    teams = [f"namespace{number}" for number in range(1, 5)]
    namespaces = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in teams]
    pods = [
        _pod(nginx, namespace, number, number < running)
        for namespace, running in zip(teams, RUNNING, strict=True)
        for number in range(nginx["spec"]["replicas"])
    ]
    lines = ",\n".join(json.dumps(one, sort_keys=True) for one in _numbered([node, tree, *namespaces, *pods]))
    return f'{{"apiVersion": "v1", "kind": "List", "items": [\n{lines}\n]}}\n'


def _pod(deployment: dict[str, Any], namespace: str, number: int, is_running: bool) -> dict[str, Any]:
    template = deployment["spec"]["template"]
    (container,) = template["spec"]["containers"]
    amounts = {kind: {"cpu": str(one["cpu"])} for kind, one in container["resources"].items()}
    spec = {**template["spec"], "containers": [{**container, "resources": amounts}]}
    made = f"2026-01-01T00:{namespace[-1]}{number}:00Z"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **template["metadata"],
            "name": f"nginx-{number}",
            "namespace": namespace,
            "creationTimestamp": made,
        },
        "spec": {**spec, **({"nodeName": "virtual"} if is_running else {})},
        "status": {"phase": "Running" if is_running else "Pending"},
    }


def _numbered(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {**one, "metadata": {**one["metadata"], "uid": f"uid-{number}", "resourceVersion": str(number)}}
        for number, one in enumerate(documents, 1)
    ]


if __name__ == "__main__":
    DUMP.write_text(dump())
