"""Reading traces in the format of openb: every problem names file, line, column and fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from domains.gpu.simulation.openb import TraceNode, read_nodes, read_pods, typical_pods
from domains.gpu.typical_pods import PodShape
from multisched.config.document import Problem

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn-0,64000,262144,2,P100\nn-1,96000,393216,0,\n"
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos\n"
    "p-0,12000,16384,1,1000,V100M32|V100M16,LS\np-1,6000,12288,1,460,,LS\np-2,4000,1024,0,0,,BE\n"
)


def write(folder: Path, text: str) -> Path:
    path = folder / "trace.csv"
    path.write_text(text)
    return path


def test_nodes_and_pods_are_read(tmp_path: Path) -> None:
    problems: list[Problem] = []

    nodes = read_nodes(write(tmp_path, NODES), problems)
    pods = read_pods(write(tmp_path, PODS), problems)

    assert nodes == (TraceNode("n-0", 64_000, 262_144, 2, "P100"), TraceNode("n-1", 96_000, 393_216, 0, ""))
    assert [pod.shape for pod in pods] == [
        PodShape(12_000, 1000, 1, ("V100M16", "V100M32")),
        PodShape(6000, 460, 1),
        PodShape(4000, 0, 0),
    ]
    assert [pod.gpu_milli for pod in pods] == [1000, 460, 0]
    assert len(typical_pods(pods)) == 3
    assert not problems


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sn,cpu_milli\n", "1:1: no column memory_mib, gpu, model; begin the file with sn,cpu_milli"),
        ("", "1:1: no column sn,"),
        ("sn,cpu_milli,memory_mib,gpu,model\n", "1:1: has no nodes"),
        (NODES.replace("64000", "6e4"), "2:1: cpu_milli: '6e4' is not a whole number from 0 to"),
        (NODES.replace(",2,", ",-2,"), "2:1: gpu: '-2' is not a whole number from 0 to 256"),
        (NODES.replace("n-1", "n-0"), "3:1: sn: 'n-0' is empty or listed above"),
        (NODES.replace(",0,\n", ",0\n"), "3:1: has 4 fields, the header has 5"),
        (NODES.replace(",2,", ",0,"), "1:1: gpu: no node has a GPU"),
    ],
)
def test_bad_nodes_are_named(tmp_path: Path, text: str, expected: str) -> None:
    problems: list[Problem] = []

    read_nodes(write(tmp_path, text), problems)

    assert f"trace.csv:{expected}" in "\n".join(map(str, problems))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PODS.replace(",460,", ",1460,"), "3:1: gpu_milli: '1460' is not a whole number from 0 to 1000"),
        (PODS.replace(",1,460,", ",1,0,"), "3:1: gpu_milli: 0 of each of 1 GPUs; write 0 of both"),
        (PODS.replace(",1,460,", ",0,460,"), "3:1: gpu_milli: 460 of each of 0 GPUs"),
        ("cpu_milli,memory_mib,num_gpu,gpu_milli\n100,100,0,0\n", "1:1: no pod requests a GPU"),
    ],
)
def test_bad_pods_are_named(tmp_path: Path, text: str, expected: str) -> None:
    problems: list[Problem] = []

    read_pods(write(tmp_path, text), problems)

    assert f"trace.csv:{expected}" in "\n".join(map(str, problems))


def test_missing_file_is_named(tmp_path: Path) -> None:
    problems: list[Problem] = []

    assert read_nodes(tmp_path / "none.csv", problems) == ()
    assert "none.csv:1:1: cannot be read: No such file or directory; name a readable CSV file" in str(problems[0])
