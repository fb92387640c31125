"""`multisched verify` at scale: `python -m tests.perf.verify_bench [--nodes 5000] [--pods 100000] [--check]`.

A snapshot as kubectl prints it, of workloads of 50 pods each: a fifth keeps apart by host, a fifth goes where a companion
is, a fifth is spread over zones, a fifth has host ports and tolerations, some have volumes. The command runs in a process of
its own; its time counts from start to exit, with the reading. Everything stands right, so that each rule is gone through to the end.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import orjson

LIMIT_S: Final = 60.0
REPLICAS: Final = 50
ZONES: Final = 10
HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
PADDING: Final = {"name": "SETTING", "value": "x" * 400}
"""Pods of production are some 4 KB each, most of which no rule reads."""


def nodes(count: int) -> Iterator[dict[str, Any]]:
    room = {"cpu": "64", "memory": "256Gi", "pods": "110", "ephemeral-storage": "100Gi"}
    for number in range(count):
        name = f"node-{number:05}"
        labels = {
            HOST: name,
            ZONE: f"zone-{number % ZONES}",
            "kubernetes.io/arch": "amd64",
            "kubernetes.io/os": "linux",
        }
        metadata = {"name": name, "labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z"}
        taints = (
            [{"key": "edge", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}] if number % 5 == 3 else []
        )
        yield _kind("Node", metadata, spec={"taints": taints}, status={"allocatable": room, "capacity": room})


def pods(count: int, node_count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        group, replica = divmod(number, REPLICAS)
        app = f"app-{group}"
        labels = {"app": app, "pod-template-hash": f"{group:08x}", "tier": f"t{group % 3}"}
        # One per host, and a zone after the other.
        node = number % node_count
        term = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": app}}}
        spec: dict[str, Any] = {"nodeName": f"node-{node:05}", "schedulerName": "default-scheduler"}
        spec["tolerations"] = [{"key": "edge", "operator": "Exists"}]
        if group % 5 == 0:
            spec["affinity"] = {"podAntiAffinity": {REQUIRED: [term]}}
        elif group % 5 == 1:
            spec["affinity"] = {"podAffinity": {REQUIRED: [{**term, "topologyKey": ZONE}]}}
        elif group % 5 == 2:
            rule = {"topologyKey": ZONE, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
            spec["topologySpreadConstraints"] = [{**rule, "labelSelector": term["labelSelector"]}]
        elif group % 5 == 3:
            spec["nodeSelector"] = {"kubernetes.io/arch": "amd64"}
        if group % 50 == 4:
            spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": f"data-{number}"}}]
        yield _pod(f"{app}-{replica:03}", labels, spec, number, port=20_000 + group if group % 5 == 4 else 0)


def _pod(name: str, labels: dict[str, str], spec: dict[str, Any], number: int, port: int) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "registry.example/team/service:v1",
        "resources": {"requests": {"cpu": "100m", "memory": "200Mi"}, "limits": {"memory": "200Mi"}},
        "env": [PADDING] * 4,
        **({"ports": [{"containerPort": 80, "hostPort": port}]} if port else {}),
    }
    sidecar = {**container, "name": "proxy", "restartPolicy": "Always", "ports": []}
    moment = f"2026-01-02T{number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}Z"
    metadata = {"name": name, "namespace": f"team-{number // 5_000}", "uid": f"uid-{number}", "labels": labels}
    metadata["creationTimestamp"] = moment
    condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": moment}
    status = {"phase": "Running", "startTime": moment, "conditions": [condition]}
    return _kind("Pod", metadata, spec={**spec, "containers": [container], "initContainers": [sidecar]}, status=status)


def storage(count: int) -> Iterator[dict[str, Any]]:
    for number in (n for n in range(count) if n // REPLICAS % 50 == 4):
        namespace, name = f"team-{number // 5_000}", f"data-{number}"
        claim = {"accessModes": ["ReadWriteOnce"], "volumeName": f"pv-{number}"}
        yield _kind(
            "PersistentVolumeClaim", {"name": name, "namespace": namespace, "uid": f"claim-{number}"}, spec=claim
        )
        volume = {"claimRef": {"namespace": namespace, "name": name, "uid": f"claim-{number}"}}
        yield _kind(
            "PersistentVolume", {"name": f"pv-{number}"}, spec={**volume, "csi": {"driver": "d", "volumeHandle": name}}
        )


def _kind(kind: str, metadata: dict[str, Any], **rest: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, **rest}


def write(path: Path, node_count: int, pod_count: int) -> None:
    with path.open("wb") as file:
        file.write(b'{"apiVersion": "v1", "kind": "List", "items": [\n')
        objects = [*nodes(node_count), *storage(pod_count)]
        file.write(b",\n".join(orjson.dumps(one, option=orjson.OPT_INDENT_2) for one in objects))
        for one in pods(pod_count, node_count):
            file.write(b",\n" + orjson.dumps(one, option=orjson.OPT_INDENT_2))
        file.write(b"\n]}\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="verify_bench", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--pods", type=int, default=100_000)
    parser.add_argument(
        "--check", action="store_true", help=f"exit 1 beyond {LIMIT_S:.0f} s, or where anything is blamed"
    )
    known = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="verify-bench-") as folder:
        path = Path(folder) / "snapshot.json"
        write(path, known.nodes, known.pods)
        size_mib = path.stat().st_size / 2**20
        began_s = time.monotonic()
        command = [sys.executable, "-m", "multisched", "verify", "--snapshot", str(path), "-o", "json"]
        ended = subprocess.run(command, stdout=subprocess.PIPE, check=False)
        took_s = time.monotonic() - began_s
    found = json.loads(ended.stdout)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    blamed = len(found["violations"]) + len(found["maybe"])
    print(
        f"{known.nodes:,} nodes, {known.pods:,} pods, {size_mib:,.0f} MiB of JSON: {took_s:.1f} s, exit {ended.returncode}"
    )
    print(f"CPU {used.ru_utime + used.ru_stime:.1f} s, peak memory {used.ru_maxrss / 1024:,.0f} MiB, {blamed} blamed")
    print(f"checked: {found['checked']}")
    return 1 if known.check and (took_s > LIMIT_S or blamed) else 0


if __name__ == "__main__":
    sys.exit(main())
