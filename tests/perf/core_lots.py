"""One tree's process in `core_bench --against`: admits, decides and confirms one lot of pods after the other.

    PYTHONPATH=TREE python -P tests/perf/core_lots.py INPUTS PROFILE

Runs with another commit's tree first on the path. Of `tests.perf.core_bench` it therefore uses only what all commits since the
reference commit (docs/figures.md) have: `Core`. The pods come from the file INPUTS, so that both trees get the same bytes.
Each line on stdin names a number of pods; the reply is a JSON list: CPU seconds to admit, to decide and to confirm them, and
a hash of the chosen nodes.
"""

from __future__ import annotations

import gc
import hashlib
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import orjson

from multisched.model.decode import Decoder
from tests.perf.core_bench import Core


def loaded(path: Path, profile: str) -> tuple[Core, Decoder, Iterator[bytes]]:
    """Returns the core with the nodes and running pods of the file, and its pending pods."""
    nodes, running, pending = (part.splitlines() for part in path.read_bytes().split(b"\n\n"))
    decoder = Decoder()
    core = Core(profile, 0, decoder, 0)
    for line in nodes:
        core.cache.set_node(decoder.node(line))
    for line in running:
        core.cache.place(decoder.pod(line))
    return core, decoder, iter(pending)


def play(core: Core, decoder: Decoder, lines: Sequence[bytes]) -> tuple[float, float, float, str]:
    """Returns the CPU seconds of the three steps, and the hash."""
    pods = [orjson.loads(line) for line in lines]
    began = time.process_time()
    for line in lines:
        core.queue.add(decoder.pod(line), 0.0)
    admitted = time.process_time()
    placed = core.decide(len(lines))
    decided = time.process_time()
    if placed != len(lines):
        raise AssertionError(f"{len(lines) - placed} of {len(lines)} pods found no node: the cluster is too small")
    for pod in pods:
        entry = core.cache.placed(pod["metadata"]["uid"])
        assert entry is not None, "the pod was placed"
        pod["spec"]["nodeName"] = entry.node
        annotations = getattr(entry, "annotations", None)  # the reference commit keeps none
        if annotations:
            pod["metadata"]["annotations"] = {**pod["metadata"].get("annotations", {}), **annotations}
    seen = [orjson.dumps(pod) for pod in pods]
    before = time.process_time()
    for line in seen:
        core.cache.place(decoder.pod(line))
    confirmed = time.process_time() - before
    return admitted - began, decided - admitted, confirmed, hashlib.sha256(b"\n".join(seen)).hexdigest()


def main() -> None:
    core, decoder, pending = loaded(Path(sys.argv[1]), sys.argv[2])
    is_warm = False
    for line in sys.stdin:
        figures = play(core, decoder, [next(pending) for _ in range(int(line))])
        if not is_warm:
            gc.freeze()  # as the program does once its caches are filled (`shell.garbage`)
            gc.set_threshold(50_000, 20, 50)
            is_warm = True
        sys.stdout.buffer.write(orjson.dumps(figures) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
