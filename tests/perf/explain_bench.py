"""What explanations cost: `python -m tests.perf.explain_bench [--nodes 5000] [--pods 100000] [--check]`.

Records: the core bench's 50 interleaved classes are decided in chunks, with and without records in turn, in one process; the
median over the pairs counts, since whatever else the machine does falls on both. Rehearsals: CPU seconds to copy a cluster,
to look for fixes and to place 1,000 planned pods. Event loop: the CPU milliseconds that the process spends between two turns of
a loop which does nothing, while a thread plays such a rehearsal, and what the loop itself spends on the copy of the cluster that
the thread is given. `--check` exits 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import sys
import time
from typing import Final

import orjson

from multisched.config import loading
from multisched.cycle.attempt_record import AttemptRecords
from multisched.cycle.classes.equivalence_class import EquivalenceClass
from multisched.model.decode import Decoder
from multisched.model.objects import Pod
from multisched.observe.explain_view import REPLICAS_MAX
from multisched.shell.garbage import disable_gc
from multisched.whatif.fixes import find_fixes
from multisched.whatif.queue_ahead import QueueAhead
from multisched.whatif.sandbox import ClusterSnapshot, SchedulerSandbox, trial
from multisched.whatif.what_if import what_if
from multisched.whatif.what_if_plan import plan_of
from tests.perf.core_bench import CLASSES, Core, _enqueue, node, pending, running

CHUNK: Final = 500
RECORDS_MAX_PERCENT: Final = 3.0
LOOP_MAX_MS: Final = 50.0
TURN_S: Final = 0.001
CONFIGURATION: Final = """
apiVersion: multisched.io/v1
kind: MultischedConfiguration
domains: [{name: all, schedulerNames: [forecast-scheduler], nodes: {rule: rest}}]
"""


def records_percent(nodes: int, pairs: int) -> float:
    """CPU time that records add to a decision."""
    decoder = Decoder()
    core = Core("default", nodes, decoder)
    waiting = iter(range(1 << 30))
    _enqueue(core, decoder, waiting, CLASSES)
    core.decide(CLASSES)
    disable_gc()
    kept, without = core.cycle.records, _NoRecords(lambda: 0.0)
    ratios = []
    for pair in range(pairs):
        seconds = {}
        for records in (without, kept) if pair % 2 else (kept, without):  # neither always comes first
            core.cycle.records = records
            _enqueue(core, decoder, waiting, CHUNK)
            began = time.process_time()
            core.decide(CHUNK)
            seconds[records] = time.process_time() - began
        ratios.append(seconds[kept] / seconds[without])
    return (statistics.median(ratios) - 1) * 100


class _NoRecords(AttemptRecords):
    """Forgets every placed pod at once."""

    def placed(self, pod: Pod, attempt: int, group: EquivalenceClass, at: int, node: str) -> None:
        """Nothing."""


def moment_of(decoder: Decoder, nodes: int, pods: int) -> ClusterSnapshot:
    return ClusterSnapshot(
        tuple(decoder.node(node(index)) for index in range(nodes)),
        tuple(decoder.pod(running(index, f"node-{index % nodes:06}")) for index in range(pods)),
    )


def loop_ms(nodes: int, pods: int) -> dict[str, float]:
    """The longest that the loop was kept, in CPU milliseconds of the process."""
    configuration, moment = loading.parse(CONFIGURATION, "bench"), moment_of(Decoder(), nodes, pods)
    program = SchedulerSandbox(configuration, moment).program
    disable_gc()
    began = time.process_time()
    copied = ClusterSnapshot.of(program)
    snapshot_s = time.process_time() - began

    def rehearse() -> None:
        with trial(configuration, copied, None) as sandbox:
            plan = plan_of(orjson.loads(pending(3)), sandbox.program.decoder)
            (view,) = what_if(sandbox, plan, REPLICAS_MAX).items
            assert all(one.node for one in view.placements)

    async def turns() -> float:
        thread, longest_s, last = asyncio.create_task(asyncio.to_thread(rehearse)), 0.0, time.process_time()
        while not thread.done():
            await asyncio.sleep(TURN_S)
            now = time.process_time()
            longest_s, last = max(longest_s, now - last), now
        await thread
        gc.collect()  # what the rehearsal left
        return max(longest_s, time.process_time() - last)

    return {"copy on the loop": snapshot_s * 1e3, "what-if in a thread": asyncio.run(turns()) * 1e3}


def rehearsal_seconds(nodes: int, pods: int) -> dict[str, float]:
    """CPU seconds of each step."""
    decoder = Decoder()
    moment = moment_of(decoder, nodes, pods)
    found: dict[str, float] = {}
    began = time.process_time()
    sandbox = SchedulerSandbox(loading.parse(CONFIGURATION, "bench"), moment)
    found["copy of the cluster"] = time.process_time() - began
    document = orjson.loads(pending(1))
    document["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "90"
    pod = decoder.pod(orjson.dumps(document))
    worker = sandbox.worker_of(pod)
    assert worker is not None
    began = time.process_time()
    assert find_fixes(sandbox, worker, pod, QueueAhead(sandbox, worker, pod), frozenset())
    found["fixes of a pod that fits nowhere"] = time.process_time() - began
    plan = plan_of(orjson.loads(pending(3)), sandbox.program.decoder)
    began = time.process_time()
    (view,) = what_if(sandbox, plan, REPLICAS_MAX).items
    assert all(one.node for one in view.placements)
    found[f"{REPLICAS_MAX} planned pods"] = time.process_time() - began
    return found


def main() -> int:
    """Prints the figures; 1 if a bar is missed and --check was given."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--pods", type=int, default=100_000, help="placed, in the cluster that is copied")
    parser.add_argument("--pairs", type=int, default=120, help="chunks with and without records")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed")
    options = parser.parse_args()
    percent = records_percent(options.nodes, options.pairs)
    print(f"records: {percent:.1f} % of a decision at {options.nodes} nodes, the bar is {RECORDS_MAX_PERCENT:.0f} %")
    for step, seconds in rehearsal_seconds(options.nodes, options.pods).items():
        print(f"{step}: {seconds:.2f} s")
    kept_ms = loop_ms(options.nodes, options.pods)
    for step, longest_ms in kept_ms.items():
        print(f"event loop, {step}: {longest_ms:.1f} ms, the bar is {LOOP_MAX_MS:.0f} ms")
    is_missed = percent > RECORDS_MAX_PERCENT or max(kept_ms.values()) > LOOP_MAX_MS
    if is_missed:
        print("MISSED")
    return 1 if options.check and is_missed else 0


if __name__ == "__main__":
    sys.exit(main())
