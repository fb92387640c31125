"""`multisched gpu` on a dump of a cluster with a node of each mode."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from multisched.cli.commands import app
from multisched.cluster.gpu_nodes import GPU_TEMPLATES, gpu_nodes

Document = dict[str, Any]
GPU = "nvidia.com/gpu"
BOUND_AT = "1700000000"


def pod(name: str, node: str, annotations: dict[str, str], *, phase: str = "Running", **limits: str) -> Document:
    resources = {"requests": limits, "limits": limits}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": name, "annotations": annotations},
        "spec": {
            "schedulerName": "gpu-scheduler",
            "nodeName": node,
            "containers": [{"name": "main", "image": "app", "resources": resources}],
        },
        "status": {"phase": phase},
    }


def in_hami(name: str, node: str, memory: int, *, phase: str = "Pending") -> Document:
    text = f"GPU-{node}-0,NVIDIA,{memory},30:;"
    annotations = {
        "hami.io/vgpu-node": node,
        "hami.io/vgpu-devices-allocated": text,
        "hami.io/vgpu-devices-to-allocate": text,
        "hami.io/bind-phase": "allocating",
        "hami.io/bind-time": BOUND_AT,
    }
    limits = {GPU: "1", "nvidia.com/gpumem": str(memory), "nvidia.com/gpucores": "30"}
    return pod(name, node, annotations, phase=phase, **limits)


def own(name: str, milli: str, devices: str, node: str = "whole-000") -> Document:
    keys = {"gpu-milli": milli, "gpu-devices": devices, "gpu-allocated-milli": milli}
    return pod(name, node, {f"multisched.io/{key}": text for key, text in keys.items()})


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    return write(tmp_path, in_hami("waiting", "hami-000", 20_480), own("a", "250", "0"), own("b", "600", "0"))


def write(folder: Path, *pods: Document, **changes: Document) -> Path:
    """`changes`: node without its number, `_` for `-` -> its metadata or status, merged into the template's."""
    nodes = [one for template in GPU_TEMPLATES for one in gpu_nodes(template, 1)]
    for name, change in changes.items():
        node = next(one for one in nodes if one["metadata"]["name"] == f"{name.replace('_', '-')}-000")
        for part, fields in change.items():
            for key, value in fields.items():
                node[part][key] = {**node[part].get(key, {}), **value}
    file = folder / "dump.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*nodes, *pods]}))
    return file


def output_of(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["gpu", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


def document(*arguments: object) -> Document:
    found: Document = json.loads(output_of(*arguments, "-o", "json"))
    return found


def row(dump: Path, name: str) -> Document:
    found: Document = next(one for one in document("nodes", "--snapshot", dump)["nodes"] if one["node"] == name)
    return found


def test_nodes_of_every_mode_are_listed(dump: Path) -> None:
    found = {one["node"]: (one["mode"], len(one["cards"])) for one in document("nodes", "--snapshot", dump)["nodes"]}
    assert found == {
        "gpushare-000": ("gpushare", 8),
        "hami-000": ("hami", 8),
        "honoured-000": ("whole", 8),
        "koordinator-000": ("koordinator", 8),
        "mig-000": ("mig", 0),
        "openb-000": ("whole", 8),
        "shared-000": ("shared", 0),
        "volcano-vgpu-000": ("volcano-vgpu", 8),
        "whole-000": ("whole", 8),
    }


def test_cards_are_bars_and_unconfirmed_holds_have_an_age(dump: Path) -> None:
    lines = {line.split()[0]: line for line in output_of("nodes", "--snapshot", dump).splitlines() if line}
    assert "▂······" in lines["hami-000"]
    assert "7 of 8" in lines["hami-000"]
    assert " min" in lines["hami-000"]
    assert "8 of 8 nvidia.com/mig-3g.40gb" in lines["mig-000"]
    [waiting] = row(dump, "hami-000")["unconfirmed"]
    assert waiting["pod"] == "default/waiting"
    assert waiting["ageSeconds"] > 0


def test_fragments_are_what_the_pods_of_the_cluster_cannot_use_on_average(tmp_path: Path) -> None:
    dump = write(tmp_path, own("a", "250", "0"), own("b", "600", "0"), own("c", "600", "1"))

    found = document("node", "whole-000", "--snapshot", dump)

    assert found["typicalPods"] == 2
    # No pod can use the 150 left of card 0; two of three pods request 600, and cannot use the 400 of card 1.
    assert [card["fragmentMilli"] for card in found["node"]["cards"]] == [150, 267, *[0] * 6]
    assert found["node"]["fragmentMilli"] == 417
    assert row(dump, "whole-000")["fragmentMilli"] == 417
    assert "what typical pods cannot use (2 kinds of pods)" in output_of("node", "whole-000", "--snapshot", dump)


def test_node_shows_which_pod_holds_which_card(dump: Path) -> None:
    found = document("node", "hami-000", "--snapshot", dump)["node"]
    [hold] = found["holds"]
    assert hold["cards"] == [{"card": 0, "milli": 250, "memory": 20_480, "unit": "MiB", "cores": 30}]
    assert not hold["isConfirmed"]
    assert found["cards"][0]["freeMemory"] == 81_920 - 20_480
    text = output_of("node", "hami-000", "--snapshot", dump)
    assert "20480 MiB and 30 % of the cores of card 0" in text
    assert "█████···············   25 %" in text


def test_held_card_that_is_not_published_is_named(tmp_path: Path) -> None:
    dump = write(tmp_path, own("lost", "500", "9"))
    [problem] = row(dump, "whole-000")["problems"]
    assert problem.startswith(
        "status.allocatable[nvidia.com/gpu]: card 9 is held by pods and not published; the pods keep"
    )
    assert problem.endswith("Restore the cards, or delete the pods")
    assert "card 9, not published now" in output_of("node", "whole-000", "--snapshot", dump)


def test_lock_shows_its_pod_and_age(tmp_path: Path) -> None:
    lock = {"metadata": {"annotations": {"hami.io/mutex.lock": "2026-01-01T00:00:00Z,team,train"}}}
    broken = {"metadata": {"annotations": {"hamivgpu": "yesterday"}}}
    dump = write(tmp_path, hami=lock, volcano_vgpu=broken)
    assert row(dump, "hami-000")["lock"]["pod"] == "team/train"
    assert "team/train" in output_of("node", "hami-000", "--snapshot", dump)
    assert row(dump, "volcano-vgpu-000")["lock"] == {"text": "yesterday", "pod": "", "ageSeconds": None}


def test_two_programs_that_describe_the_same_cards_are_a_problem(tmp_path: Path) -> None:
    status = {"allocatable": {GPU: "8"}}
    dump = write(tmp_path, gpushare={"status": status}, koordinator={"status": status}, hami={"status": status})
    for name, mode in (("gpushare-000", "gpushare"), ("koordinator-000", "koordinator")):
        found = row(dump, name)
        assert found["mode"] == mode
        assert len(found["cards"]) == 8
        assert found["problems"] == [
            (
                f"{mode} and the vendor's device plugin describe the same cards; only those of {mode} count."
                " Let one program serve the node"
            )
        ]
    assert row(dump, "hami-000")["problems"] == [], "HAMi's plugin itself reports the plain name"


def test_truncated_cards_are_a_problem_with_field(tmp_path: Path) -> None:
    cards = {"metadata": {"annotations": {"hami.io/node-nvidia-register": '[{"id": "GPU-a", "devm'}}}
    [problem] = row(write(tmp_path, hami=cards), "hami-000")["problems"]
    assert problem.startswith("annotation hami.io/node-nvidia-register: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("node", "hami-00"), "domain gpu has no node hami-00; did you mean hami-000?"),
        (("node", "zzz"), "domain gpu has no node zzz; multisched gpu nodes lists its nodes with GPUs"),
        (("nodes", "--domain", "gpus"), "domain gpus does not serve the view gpu; these domains do: gpu"),
        (("nodes", "--fit", "/none.yaml"), "/none.yaml cannot be read"),
    ],
)
def test_missing_names_are_reported(dump: Path, arguments: tuple[str, ...], message: str) -> None:
    assert message in output_of(*arguments, "--snapshot", dump, code=2)


def manifest(folder: Path, **fields: Any) -> Path:
    file = folder / "pod.json"
    metadata = {"name": "more", "annotations": fields.pop("annotations", {})}
    container = {"name": "main", "image": "app", "resources": {"limits": fields}}
    spec = {"schedulerName": "gpu-scheduler", "containers": [container]}
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}))
    return file


def test_fit_counts_by_node_and_in_all_by_trial(tmp_path: Path) -> None:
    """Cores allow three pods on the card that is used, six on each other card; the count of sharers does not limit."""
    dump = write(tmp_path, in_hami("running", "hami-000", 20_480, phase="Running"))
    file = manifest(tmp_path, **{GPU: 1, "nvidia.com/gpumem": 10_000, "nvidia.com/gpucores": 16})
    found = document("nodes", "--snapshot", dump, "--fit", file)
    by_node = {one["node"]: one["fit"] for one in found["nodes"] if one["fit"]}
    assert by_node == {"hami-000": 4 + 7 * 6}
    assert found["fit"]["total"] == 46
    assert not found["fit"]["isLimit"]
    assert "Insufficient nvidia.com/gpumem" in found["fit"]["nextMessage"]
    text = output_of("node", "hami-000", "--snapshot", dump, "--fit", file)
    assert "46 more of default/more fit; 46 of them on hami-000" in text


def test_fit_counts_every_filter(tmp_path: Path) -> None:
    """Ten pods of eight CPUs would have cards, but the node has 96 CPUs."""
    file = manifest(tmp_path, annotations={"multisched.io/gpu-milli": "100"}, cpu="40")
    found = document("node", "whole-000", "--snapshot", write(tmp_path), "--fit", file)
    assert found["node"]["fit"] == 2
    assert set(found["fit"]["otherNodes"].values()) == {2}


def test_fit_names_an_unanswered_device_plugin_as_the_reason(dump: Path, tmp_path: Path) -> None:
    file = manifest(tmp_path, **{GPU: 1, "nvidia.com/gpumem": 10_000})
    text = output_of("node", "hami-000", "--snapshot", dump, "--fit", file)
    assert "0 more of default/more fit" in text
    assert "1 node(s) had a pod whose GPUs the device plugin has not allocated yet" in text


def test_fit_takes_one_manifest(dump: Path, tmp_path: Path) -> None:
    file = manifest(tmp_path, cpu="1")
    file.write_text(f"{file.read_text()}\n---\n{file.read_text()}")
    assert "give one Pod or one workload" in output_of("nodes", "--snapshot", dump, "--fit", file, code=2)


def explained(dump: Path, *arguments: str) -> str:
    result = CliRunner().invoke(app, ["explain", "pod", *arguments, "--snapshot", str(dump)])
    assert result.exit_code == 0, result.output
    return result.output


def test_explain_names_the_reason_for_the_card_and_its_free_amounts(dump: Path) -> None:
    assert (
        "GpuShare about whole-000: it holds card 0: free 750 milli without it, 150 with it; fragments of the node (what"
        " typical pods cannot use): 0 milli without it, 150 with it; free of the other cards with room for it: 1 (1000 milli),"
        " 2 (1000 milli), 3 (1000 milli), 4 (1000 milli) and 3 more"
    ) in explained(dump, "b")


def test_explain_shows_which_card_a_pending_pod_would_get(tmp_path: Path) -> None:
    pending = own("new", "300", "0")
    del pending["spec"]["nodeName"]
    pending["metadata"]["annotations"] = {"multisched.io/gpu-milli": "300"}
    pending["status"]["phase"] = "Pending"
    pending["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "whole-000"}
    dump = write(tmp_path, own("a", "700", "3"), pending)
    assert "it would get card 3: free 300 milli without it, 0 with it" in explained(dump, "new")
    assert "GpuShare about hami-000: it would get no card: node(s) shared GPUs in mode hami" in explained(
        dump, "new", "--node", "hami-000"
    )


def test_explain_names_cards_of_unknown_index(tmp_path: Path) -> None:
    dump = write(tmp_path, pod("other", "whole-000", {}, **{GPU: "2"}))
    assert "it holds 2 cards, and their indices are unknown" in explained(dump, "other")
