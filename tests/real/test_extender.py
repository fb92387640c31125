"""One HTTP extender asked by kube-scheduler and by us, from one configuration: the same questions, the same ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.real.admin import PODS, Admin, until
from tests.real.control_plane import ControlPlane
from tests.unit.plugins.extender.extender_kit import Extender, extending

pytestmark = pytest.mark.timeout(400)

LIMIT_S = 120.0
FPGA = "example.com/fpga"
THEIRS, OURS = "theirs", "ours"
MULTISCHED = str(Path(sys.executable).with_name("multisched"))


def node(name: str) -> dict[str, Any]:
    amounts = {"cpu": "8", "memory": "16Gi", "pods": "110", FPGA: "4"}
    status = {"capacity": amounts, "allocatable": amounts}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}


def pod(mode: str, scheduler: str) -> dict[str, Any]:
    limits = {FPGA: "1"} if mode == "fpga" else {}
    resources = {"requests": {"cpu": "1"}, "limits": limits}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{mode}-{scheduler}", "labels": {"mode": mode}},
        "spec": {
            "schedulerName": scheduler,
            "containers": [{"name": "main", "image": "registry.k8s.io/pause:3.10.2", "resources": resources}],
        },
    }


def configuration(plane: ControlPlane, scheduler: str, *extenders: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(plane.kubeconfig)},
        "leaderElection": {"leaderElect": False},
        "percentageOfNodesToScore": 100,
        "profiles": [{"schedulerName": scheduler}],
        "extenders": list(extenders),
    }


def filter_nodes(body: Any) -> object:
    """Not n1 for anybody, no node for some, and an error for others."""
    mode = body["Pod"]["metadata"]["labels"]["mode"]
    if mode == "fail":
        return web.Response(status=500)
    if mode == "wrong":
        return {"Error": "no licence server"}
    left = [] if mode == "refuse" else ["n2", "n3"]
    by_name = {item["metadata"]["name"]: item for item in (body["Nodes"] or {}).get("items", [])}
    failed = {name: "no licence" for name in ("n1", "n2", "n3") if name not in left}
    if body["NodeNames"] is None:
        return {"Nodes": {"items": [by_name[name] for name in left]}, "FailedNodes": failed}
    return {"NodeNames": left, "FailedNodes": failed}


def prefer_n3(_: Any) -> object:
    return [{"Host": "n3", "Score": 7}, {"Host": "n2", "Score": 2}]


async def start_both(plane: ControlPlane, tmp_path: Path, *extenders: dict[str, Any]) -> None:
    for name in (THEIRS, OURS):
        (tmp_path / f"{name}.json").write_text(json.dumps(configuration(plane, name, *extenders)))
    flags = [f"--config={tmp_path / 'theirs.json'}", "--secure-port=0"]
    await plane.start_program("kube-scheduler", [str(plane.binaries / "kube-scheduler"), *flags])
    converted = tmp_path / "ours.yaml"
    command = [MULTISCHED, "config", "convert", str(tmp_path / "ours.json"), "-o", str(converted)]
    subprocess.run(command, check=True, capture_output=True)  # noqa: ASYNC221 - nothing else runs yet
    converted.write_text(converted.read_text() + "server: {enabled: false}\n")
    run = [MULTISCHED, "run", "--kubeconfig", str(plane.kubeconfig), "--config", str(converted)]
    await plane.start_program("multisched", run)


async def state(admin: Admin, name: str) -> tuple[str, str, str]:
    """Node, and reason and message of PodScheduled."""
    found = await admin.request("GET", f"{PODS}/{name}")
    conditions = [c for c in found["status"].get("conditions", []) if c["type"] == "PodScheduled"]
    message = conditions[0].get("message", "") if conditions else ""
    reason = conditions[0].get("reason", "") if conditions else ""
    return found["spec"].get("nodeName", ""), reason, message


async def decided(admin: Admin, mode: str) -> tuple[str, str, str]:
    """What became of a pod in this mode, which must be the same for both."""
    for scheduler in (THEIRS, OURS):
        await admin.create(pod(mode, scheduler))

    async def both_are() -> bool:
        found = [await state(admin, f"{mode}-{scheduler}") for scheduler in (THEIRS, OURS)]
        return all(node or message for node, _, message in found)

    try:
        await until(both_are, LIMIT_S)
    except TimeoutError:
        raise AssertionError([await state(admin, f"{mode}-{scheduler}") for scheduler in (THEIRS, OURS)]) from None
    theirs, ours = [await state(admin, f"{mode}-{scheduler}") for scheduler in (THEIRS, OURS)]
    assert ours == theirs
    return ours


def asked_by(extender: Extender, scheduler: str, verb: str) -> list[Any]:
    return [body for at, body in extender.asked if at == verb and body["Pod"]["spec"]["schedulerName"] == scheduler]


@pytest.mark.parametrize("is_capable", [True, False], ids=["names", "whole nodes"])
async def test_both_schedulers_send_equal_extender_requests_and_decide_equally(
    tmp_path: Path, is_capable: bool
) -> None:
    async with (
        extending(filter=filter_nodes, prioritize=prefer_n3) as extender,
        ControlPlane.start(tmp_path, controller_manager=False) as plane,
        Admin.open(plane) as admin,
    ):
        await admin.create_all([node(name) for name in ("n1", "n2", "n3")])
        verbs = {"filterVerb": "filter", "prioritizeVerb": "prioritize", "weight": 20}
        await start_both(plane, tmp_path, {"urlPrefix": extender.url, "nodeCacheCapable": is_capable, **verbs})

        assert (await decided(admin, "plain"))[0] == "n3"
        assert (await decided(admin, "refuse"))[2].startswith("0/3 nodes are available: 3 no licence.")
        assert (await decided(admin, "fail"))[1:] == (
            "SchedulerError",
            f"failed filter with extender at URL {extender.url}/filter, code 500",
        )
        for verb in ("filter", "prioritize"):
            theirs, ours = (asked_by(extender, scheduler, verb)[0] for scheduler in (THEIRS, OURS))
            assert theirs.keys() == ours.keys()
            assert sorted(theirs["NodeNames"] or ()) == sorted(ours["NodeNames"] or ())
            assert theirs["Pod"]["spec"].keys() == ours["Pod"]["spec"].keys()
            if not is_capable:
                whole = [{n["metadata"]["name"]: n for n in body["Nodes"]["items"]} for body in (theirs, ours)]
                assert whole[0].keys() == whole[1].keys()
                assert all(whole[1][name]["status"] == found["status"] for name, found in whole[0].items())


async def test_both_schedulers_let_the_extender_bind_pods_with_its_resource(tmp_path: Path) -> None:
    async with ControlPlane.start(tmp_path, controller_manager=False) as plane, Admin.open(plane) as admin:

        async def bind(body: Any) -> object:
            binding = {
                "metadata": {"name": body["PodName"], "namespace": body["PodNamespace"], "uid": body["PodUID"]},
                "target": {"kind": "Node", "name": body["Node"]},
            }
            await admin.request("POST", f"{PODS}/{body['PodName']}/binding", binding)
            return {"Error": ""}

        async with extending(bind=bind) as extender:
            await admin.create_all([node("n1")])
            managed = [{"name": FPGA}]
            asked = {"urlPrefix": extender.url, "bindVerb": "bind", "managedResources": managed}
            await start_both(plane, tmp_path, asked)
            assert (await decided(admin, "fpga"))[0] == "n1"
            assert (await decided(admin, "plain"))[0] == "n1"
            assert sorted(body["PodName"] for _, body in extender.asked) == ["fpga-ours", "fpga-theirs"]
            theirs, ours = sorted((body for _, body in extender.asked), key=lambda b: str(b["PodName"]))[::-1]
            assert theirs.keys() == ours.keys()
