"""kubectl 1.36.3 as a process against the chosen cluster: one namespace and one home folder per test.

What is asserted is what a user relies on: exit codes, names, values. Column widths and wording are kubectl's own affair.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

Document = dict[str, Any]
TIMEOUT_S = 30
NODE_READY_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Kubectl:
    """Runs kubectl in a namespace."""

    binary: Path
    kubeconfig: Path
    home: Path
    namespace: str = "default"

    def __call__(self, *arguments: str, stdin: Document | str | None = None, editor: str = "false") -> str:
        """What it printed; it has to succeed."""
        done = self.run(*arguments, stdin=stdin, editor=editor)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout

    def fails(self, *arguments: str, stdin: Document | str | None = None) -> str:
        """Its complaint; it has to fail."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode != 0, f"kubectl {' '.join(arguments)} succeeded: {done.stdout}"
        return done.stderr

    def get(self, *arguments: str) -> Document:
        """`get … -o json`."""
        found: Document = json.loads(self("get", *arguments, "-o", "json"))
        return found

    def names(self, *arguments: str) -> list[str]:
        """`get … -o name`."""
        return self("get", *arguments, "-o", "name").split()

    def run(
        self, *arguments: str, stdin: Document | str | None = None, editor: str = "false"
    ) -> subprocess.CompletedProcess[str]:
        text = stdin if isinstance(stdin, str) else json.dumps(stdin) if stdin is not None else ""
        return subprocess.run(
            self.command(*arguments),
            input=text,
            env=self.environment(editor),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """A kubectl that goes on, for instance with `--watch`; its two outputs are one. Use it as a context."""
        return subprocess.Popen(
            self.command(*arguments),
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def command(self, *arguments: str) -> list[str]:
        place = ["--kubeconfig", str(self.kubeconfig), "--namespace", self.namespace]
        return [str(self.binary), *place, *arguments]

    def environment(self, editor: str = "false") -> Mapping[str, str]:
        kept = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
        return {**kept, "HOME": str(self.home), "KUBE_EDITOR": editor}


@pytest.fixture(scope="session")
def _anywhere(kubectl: Path, cluster_kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    """One home for all tests, so that discovery is asked for once."""
    return Kubectl(kubectl, cluster_kubeconfig, tmp_path_factory.mktemp("home"))


@pytest.fixture
def ctl(_anywhere: Kubectl) -> Iterator[Kubectl]:
    """kubectl in a namespace of the test's own, which goes with everything in it."""
    name = f"kubectl-{time.time_ns():x}"
    _anywhere("create", "namespace", name)
    yield Kubectl(_anywhere.binary, _anywhere.kubeconfig, _anywhere.home, name)
    _anywhere("delete", "namespace", name, "--wait=false")


@pytest.fixture
def node(_anywhere: Kubectl, node_agents: None) -> Iterator[str]:
    """A Ready node of the test's own."""
    name = f"node-{time.time_ns():x}"
    resources = {"cpu": "8", "memory": "16Gi", "pods": "50"}
    document = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"capacity": resources, "allocatable": resources},
    }
    _anywhere("create", "-f", "-", stdin=document)
    _anywhere("wait", "--for=condition=Ready", f"node/{name}", f"--timeout={NODE_READY_TIMEOUT_S}s")
    yield name
    _anywhere("delete", "node", name, "--wait=false")


def pod(name: str, *, on: str = "", **labels: str) -> Document:
    """A small pod, on a node already if one is given: no scheduler runs here."""
    spec: Document = {
        "terminationGracePeriodSeconds": 1,
        "containers": [
            {"name": "main", "image": "app:1", "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}}
        ],
    }
    if on:
        spec["nodeName"] = on
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {"app": name}},
        "spec": spec,
    }


def deployment(name: str, *, on: str = "", replicas: int = 2) -> Document:
    """A Deployment of such pods."""
    template = pod(name, on=on)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": template["spec"] | {"terminationGracePeriodSeconds": 1},
            },
        },
    }


def config_map(name: str, **data: str) -> Document:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def rows(table: str) -> list[dict[str, str]]:
    """The table as one mapping per row, by the positions of its heads (cells may be empty or hold single spaces)."""
    head, *lines = table.splitlines()
    starts = [i for i, c in enumerate(head) if c != " " and (i == 0 or head[i - 3 : i].isspace())]
    names = [head[a:b].strip() for a, b in zip(starts, [*starts[1:], None], strict=True)]
    return [
        {name: line[a:b].strip() for name, a, b in zip(names, starts, [*starts[1:], None], strict=True)}
        for line in lines
    ]
