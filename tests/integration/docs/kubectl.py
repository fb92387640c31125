"""As much of kubectl as the documents use, so that the tests need nothing but Python: `python kubectl.py ARGUMENTS`.

`make real` has the documents' commands run by kubectl itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from multisched.client.transport import connect
from multisched.model.wire import Transport

CORE: Final = "/api/v1"
GROUPS: Final = {
    "Deployment": "/apis/apps/v1",
    "Job": "/apis/batch/v1",
    "CronJob": "/apis/batch/v1",
    "ResourcePolicy": "/apis/scheduling.alibabacloud.com/v1alpha1",
    "ElasticQuotaTree": "/apis/scheduling.sigs.k8s.io/v1beta1",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1",
}
SHORT: Final = {
    "nodes": (CORE, "nodes"),
    "pods": (CORE, "pods"),
    "namespaces": (CORE, "namespaces"),
    "pv": (CORE, "persistentvolumes"),
    "pvc": (CORE, "persistentvolumeclaims"),
    "sc": ("/apis/storage.k8s.io/v1", "storageclasses"),
    "csinodes": ("/apis/storage.k8s.io/v1", "csinodes"),
    "lease": ("/apis/coordination.k8s.io/v1", "leases"),
    "elasticquotatrees": ("/apis/scheduling.sigs.k8s.io/v1beta1", "elasticquotatrees"),
}
GLOBAL: Final = frozenset({"Node", "Namespace", "CustomResourceDefinition"})
MERGE: Final = "application/merge-patch+json"
MADE: Final = 201
"""The highest status that is none of an error."""
FOUND: Final = 409


async def main() -> int:
    """The exit code."""
    arguments = parser().parse_intermixed_args()
    async with connect(Path(os.environ["KUBECONFIG"])) as transport:
        verb = {"apply": put, "create": put, "get": get, "label": label, "wait": wait}[arguments.verb]
        return await verb(transport, arguments)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser()
    found.add_argument("verb")
    found.add_argument("names", nargs="*")
    found.add_argument("-f", action="append", default=[], dest="files")
    found.add_argument("-n", default="default", dest="namespace")
    found.add_argument("-A", action="store_true")
    found.add_argument("-o", default="")
    found.add_argument("--for", dest="condition", default="")
    found.add_argument("--timeout", default="60s")
    return found


async def ask(
    transport: Transport, method: str, path: str, document: Any = None, content_type: str = "application/json"
) -> Any:
    """The status, and the document of the answer."""
    body = None if document is None else json.dumps(document).encode()
    answer = await transport.request(method, path, body=body, content_type=content_type)
    return answer.status, json.loads(answer.body)


def documents(files: list[str]) -> Iterator[dict[str, Any]]:
    for name in files:
        texts = [sys.stdin.read()] if name == "-" else [one.read_text() for one in sorted(_below(Path(name)))]
        for text in texts:
            yield from (one for one in yaml.safe_load_all(text) if one is not None)


def _below(path: Path) -> list[Path]:
    return [path] if path.is_file() else list(path.glob("*.yaml"))


async def put(transport: Transport, arguments: argparse.Namespace) -> int:
    """apply and create: what is there already is merged by the one, and refused by the other."""
    wanted = list(documents(arguments.files))
    if arguments.names[:1] == ["namespace"]:
        wanted.append({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": arguments.names[1]}})
    for document in wanted:
        kind, name = document["kind"], document["metadata"]["name"]
        namespace = document["metadata"].get("namespace", arguments.namespace)
        where = "" if kind in GLOBAL else f"/namespaces/{namespace}"
        plural = f"{kind.lower()}s".replace("ys", "ies")
        path = f"{GROUPS.get(kind, CORE)}{where}/{plural}"
        status, answer = await ask(transport, "POST", path, document)
        if status == FOUND and arguments.verb == "apply":
            status, answer = await ask(transport, "PATCH", f"{path}/{name}", document, MERGE)
        if status > MADE:
            print(f"Error from server: {answer.get('message')}", file=sys.stderr)
            return 1
        print(f"{kind.lower()}/{name} {'configured' if status < MADE else 'created'}")
    return 0


async def get(transport: Transport, arguments: argparse.Namespace) -> int:
    """get KINDS, of all namespaces or of one; `-o json`, or names."""
    items = []
    for kind in arguments.names[0].split(","):
        group, plural = SHORT[kind]
        where = "" if arguments.A else f"/namespaces/{arguments.namespace}"
        status, answer = await ask(transport, "GET", f"{group}{where}/{plural}")
        if status > MADE:
            print(f"Error from server: {answer.get('message')}", file=sys.stderr)
            return 1
        head = {"apiVersion": answer["apiVersion"], "kind": answer["kind"].removesuffix("List")}
        items += [{**head, **one} for one in answer["items"]]
    whole = {"apiVersion": "v1", "kind": "List", "items": items}
    print(json.dumps(whole) if arguments.o == "json" else "\n".join(one["metadata"]["name"] for one in items))
    return 0


async def label(transport: Transport, arguments: argparse.Namespace) -> int:
    """label node NAME KEY=VALUE."""
    _, name, assignment = arguments.names
    key, _, value = assignment.partition("=")
    patch = {"metadata": {"labels": {key: value}}}
    status, _ = await ask(transport, "PATCH", f"{CORE}/nodes/{name}", patch, MERGE)
    return int(status > MADE)


async def wait(transport: Transport, arguments: argparse.Namespace) -> int:
    """wait deployment/NAME or pod/NAME --for=jsonpath={.status.FIELD}=VALUE."""
    kind, _, name = arguments.names[0].partition("/")
    path, _, value = arguments.condition.removeprefix("jsonpath=").rpartition("=")
    field = path.strip("{}").rpartition(".")[2]
    end_s = time.monotonic() + float(arguments.timeout.removesuffix("s"))
    where = f"{GROUPS.get(kind.capitalize(), CORE)}/namespaces/{arguments.namespace}/{kind}s/{name}"
    while time.monotonic() < end_s:
        _, found = await ask(transport, "GET", where)
        if str(found.get("status", {}).get(field)) == value:
            print(f"{kind}/{name} condition met")
            return 0
        await asyncio.sleep(0.05)
    print(f"error: timed out waiting for the condition on {kind}s/{name}: {found.get('status')}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
