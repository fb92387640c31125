"""A cluster in which nothing happens but what a test does, with multisched and its page, and the API server's own word on it.

`ApiTruth` reads pods, nodes and quotas straight from the API server and adds them up. It shares no code with the product, so
that a mistake of the product is not repeated by the check.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import orjson
import yaml

from tests.integration.program.command import multisched
from tests.perf.served_cluster import client_context

NODES: Final = 12
QUOTAS: Final = "/apis/scheduling.sigs.k8s.io/v1beta1/namespaces/kube-system/elasticquotatrees"
DEFINITION: Final = Path(__file__).parents[2] / "deploy" / "crds" / "elasticquotatrees.yaml"
BYTES: Final = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
CONFIGURATION: Final = {
    "apiVersion": "multisched.io/v1",
    "kind": "MultischedConfiguration",
    "domains": [{"name": "forecast"}],
    "server": {"port": 0},
    "lease": {"enabled": False},
}


class StillCluster:
    """The API server, and the address of multisched."""

    def __init__(self, session: aiohttp.ClientSession, api: str, url: str) -> None:
        self.url = url
        self._session = session
        self._api = api

    async def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Returns the response of the API server. `body` of a PATCH is a merge patch."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        data = None if body is None else orjson.dumps(body)
        async with self._session.request(method, self._api + path, data=data, headers={"Content-Type": kind}) as answer:
            found = orjson.loads(await answer.read())
            assert answer.status < 300, found
            return found

    async def read(self, path: str) -> Any:
        """Reads a document of multisched, as another page does."""
        async with self._session.get(f"{self.url}/api/v1/{path}") as answer:
            assert answer.status == 200, await answer.text()
            return orjson.loads(await answer.read())

    async def pod(self, name: str, cpu: str = "1", *, namespace: str = "default", **fields: Any) -> None:
        """Creates a pod of the domain. `fields`: of its spec, or `metadata`."""
        metadata = {"name": name, **fields.pop("metadata", {})}
        requests = {"cpu": cpu, "memory": "256Mi"}
        main = {"name": "main", "image": "app:v1", "resources": {"requests": requests}}
        spec = {"schedulerName": "forecast-scheduler", "containers": [main], **fields}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        await self.call("POST", f"/api/v1/namespaces/{namespace}/pods", body)

    async def delete(self, name: str, *, namespace: str = "default") -> None:
        await self.call("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}?gracePeriodSeconds=0")

    async def truth(self) -> ApiTruth:
        """Returns what the API server has now."""
        nodes, pods, trees = [await self.call("GET", path) for path in ("/api/v1/nodes", "/api/v1/pods", QUOTAS)]
        return ApiTruth(nodes["items"], pods["items"], trees["items"])


class ApiTruth:
    """Sums over the API server's objects."""

    def __init__(self, nodes: list[Any], pods: list[Any], trees: list[Any]) -> None:
        self.nodes = {one["metadata"]["name"]: one for one in nodes}
        self._trees = trees
        alive = [one for one in pods if one.get("status", {}).get("phase") not in ("Succeeded", "Failed")]
        self.placed = [one for one in alive if one["spec"].get("nodeName")]
        self.pending = [one for one in alive if not one["spec"].get("nodeName")]

    def state_counts(self) -> dict[str, int]:
        """Returns gated and unschedulable pods."""
        gated = sum(bool(one["spec"].get("schedulingGates")) for one in self.pending)
        return {"gated": gated, "unschedulable": len(self.pending) - gated}

    def refused_by(self) -> Counter[str]:
        """Returns the annotation `why` of pending pods -> their number: the plugins that refuse them, as the test made them."""
        return Counter(one["metadata"]["annotations"]["why"] for one in self.pending)

    def node_rows(self) -> dict[str, list[str]]:
        """Returns node -> shares of cpu, memory and pods in percent, number of pods, state."""
        return {name: self._row(name, one) for name, one in self.nodes.items()}

    def _row(self, name: str, node: Any) -> list[str]:
        here = [one for one in self.placed if one["spec"]["nodeName"] == name]
        allocatable = node["status"]["allocatable"]
        shares = [sum(requested(one, kind) for one in here) / amount(allocatable[kind]) for kind in ("cpu", "memory")]
        shares.append(len(here) / int(allocatable["pods"]))
        state = "cordoned or invalid" if node["spec"].get("unschedulable") else ""
        return [*(f"{math.floor(100 * one + 0.5)} %" for one in shares), str(len(here)), state]

    def cores(self) -> tuple[float, float]:
        """Returns requested and allocatable cores of all nodes."""
        held = sum(requested(one, "cpu") for one in self.placed)
        return held, sum(amount(one["status"]["allocatable"]["cpu"]) for one in self.nodes.values())

    def teams(self) -> dict[str, tuple[float, float, float]]:
        """Returns namespace of a quota -> cores used, min, and used with what its pending pods request."""
        found = {}
        for team in self._trees[0]["spec"]["root"]["children"]:
            [namespace] = team["namespaces"]
            used, waiting = (
                sum(requested(one, "cpu") for one in some if one["metadata"]["namespace"] == namespace)
                for some in (self.placed, self.pending)
            )
            found[namespace] = (used, amount(team["min"]["cpu"]), used + waiting)
        return found


def amount(text: str) -> float:
    """Reads a Kubernetes quantity."""
    if text[-2:] in BYTES:
        return float(text[:-2]) * BYTES[text[-2:]]
    return float(text[:-1]) / 1000 if text.endswith("m") else float(text)


def requested(pod: Any, resource: str) -> float:
    """What a pod requests: its containers together, or its largest init container; and its overhead."""

    def of(container: Any) -> float:
        return amount(container.get("resources", {}).get("requests", {}).get(resource, "0"))

    spec = pod["spec"]
    most = max(sum(map(of, spec["containers"])), max((of(one) for one in spec.get("initContainers", ())), default=0.0))
    return most + amount(spec.get("overhead", {}).get(resource, "0"))


@asynccontextmanager
async def running_still_cluster(folder: Path) -> AsyncIterator[StillCluster]:
    """Starts the embedded API server with some nodes and two teams, and multisched."""
    kubeconfig, file = folder / "kubeconfig", folder / "still.yaml"
    file.write_bytes(orjson.dumps(CONFIGURATION))  # JSON is YAML
    environment = {"TMPDIR": str(folder), "HOME": str(folder), "XDG_RUNTIME_DIR": str(folder), "KUBECONFIG": ""}
    made = ("--nodes", str(NODES), "--port", "0", "--kubeconfig", str(kubeconfig))
    async with multisched("cluster", *made, environment=environment) as server:
        await server.has_printed("KUBECONFIG=")
        api, context = client_context(kubeconfig)
        connector = aiohttp.TCPConnector(ssl=context)
        async with aiohttp.ClientSession(connector=connector) as session:
            cluster = StillCluster(session, api, "")
            for kind, document in _teams():
                await cluster.call("POST", kind, document)
            run = ("run", "--kubeconfig", str(kubeconfig), "--config", str(file))
            async with multisched(*run, environment=environment) as program:
                line = await program.has_printed("serving")
                cluster.url = next(word for word in line.replace('"', " ").split() if word.startswith("http"))
                yield cluster


def _teams() -> list[tuple[str, Any]]:
    teams = [{"name": name, "namespaces": [name], "min": {"cpu": "4"}, "max": {"cpu": "8"}} for name in ("red", "blue")]
    tree = {
        "apiVersion": "scheduling.sigs.k8s.io/v1beta1",
        "kind": "ElasticQuotaTree",
        "metadata": {"name": "teams", "namespace": "kube-system"},
        "spec": {"root": {"name": "root", "min": {"cpu": "16"}, "max": {"cpu": "16"}, "children": teams}},
    }
    namespaces = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in ("red", "blue")]
    return [
        ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", yaml.safe_load(DEFINITION.read_text("utf-8"))),
        *(("/api/v1/namespaces", one) for one in namespaces),
        (QUOTAS, tree),
    ]
