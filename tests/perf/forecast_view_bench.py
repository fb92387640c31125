"""What the forecast shows, at scale: `python -m tests.perf.forecast_view_bench [--nodes 5000]`.

So many nodes with 20 pods each, 600 services in 5 dimensions. Printed for each document: how long the copy on the loop and the
whole take, its bytes, and the longest time for which the loop had no turn meanwhile (the second of two goes; the first after new
profiles counts all rows). Then the page of 1,000 services on 500 nodes: its bytes, and how long it takes to write.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import Final

import orjson

from domains.forecast.commands.page import page_of
from multisched.framework.views import ViewPorts, ViewQuery
from multisched.shell.garbage import disable_gc
from multisched.testing.builders import all_rows
from tests.unit.domains.forecast.fleets import ShownFleet, StoppedClock, large_fleet

DIMENSIONS: Final = ("cpu", "memory", "log", "net", "disk")
ASKED: Final = (("nodes", ""), ("node", "node-7"), ("at", "20:00"), ("services", ""), ("backtest", ""), ("report", ""))
TICK_S: Final = 0.0005


async def measure(fleet: ShownFleet, what: str, argument: str) -> str:
    longest_s = 0.0

    async def tick() -> None:
        nonlocal longest_s
        last_s = time.perf_counter()
        while True:
            await asyncio.sleep(TICK_S)
            now_s = time.perf_counter()
            longest_s, last_s = max(longest_s, now_s - last_s), now_s

    query = ViewQuery(what, {"name" if what == "node" else "moment": argument} if argument else {})
    watch = asyncio.create_task(tick())
    began_s = time.perf_counter()
    make = await fleet.plugin.show(query, ViewPorts(StoppedClock(), all_rows(fleet.cache)))
    copied_s = time.perf_counter()
    body = await asyncio.to_thread(lambda: orjson.dumps(make()))
    ended_s = time.perf_counter()
    watch.cancel()
    times = f"copy {1000 * (copied_s - began_s):6.0f} ms, all {1000 * (ended_s - began_s):6.0f} ms"
    return f"{what:9} {times}, {len(body):9,} bytes, loop without a turn {1000 * longest_s:4.0f} ms"


async def main(nodes: int) -> None:
    fleet = large_fleet(600, nodes, DIMENSIONS)
    disable_gc()
    for what, argument in ASKED:
        await measure(fleet, what, argument)
        print(await measure(fleet, what, argument))
    document = await large_fleet(1_000, 500, DIMENSIONS).show("report")
    began_s = time.perf_counter()
    page = page_of(document)
    print(f"page of 1,000 services on 500 nodes: {len(page.encode()):,} bytes, {time.perf_counter() - began_s:.2f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5_000)
    asyncio.run(main(parser.parse_args().nodes))
