"""What the page costs a browser: the main thread's time of a frame while a long view scrolls, and the time of an update.

Debian's Chromium without a display and without a GPU. A frame's time is from its beginning until the browser has styled, laid
out and recorded what it paints; an update's is from the request of a document until the frame with it is done. Both are wall
times, which other processes of the machine lengthen; the CPU time of scripts, styles and layouts, and their number are counted, too.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tests.page.browser import Tab, open_tab

FRAMES: Final = 150
STEP_PX: Final = 60
UPDATES: Final = 12
SCROLLED: Final = {
    "nodes": "document.querySelectorAll('.cells a').length === 500",
    "pending/tests%2Funschedulable%2FNodeResourcesFit": "document.querySelectorAll('table')[1]?.rows.length === 101",
}
"""View -> when it is there: 500 cells and a table of 25 nodes; 100 pods with their messages."""
AFTER_FRAME: Final = """
    const afterFrame = () => new Promise((resolve) => requestAnimationFrame(() => {
        const channel = new MessageChannel();
        channel.port1.onmessage = () => resolve(performance.now());
        channel.port2.postMessage(0);
    }));
"""
SCROLL: Final = """(async () => { %s
    const found = [];
    let by = %d;
    for (let frame = 0; frame < %d; frame++) {
        const began = await new Promise((resolve) => requestAnimationFrame(() => {
            const now = performance.now(), before = scrollY;
            window.scrollBy(0, by);
            if (scrollY === before) by = -by;
            resolve(now);
        }));
        const channel = new MessageChannel();
        found.push(await new Promise((resolve) => {
            channel.port1.onmessage = () => resolve(performance.now() - began);
            channel.port2.postMessage(0);
        }));
    }
    return found;
})()"""
UPDATE: Final = """(async () => { %s
    const select = document.querySelectorAll('.controls select')[1] ?? document.querySelector('.controls select');
    const found = [];
    for (let time = 0; time < %d; time++) {
        select.value = select.options[time %% 2].value;
        const changed = new Promise((resolve) => new MutationObserver((_, observer) => { observer.disconnect(); resolve(); })
            .observe(document.querySelector('.view > div'), { childList: true, subtree: true, attributes: true, characterData: true }));
        const began = performance.now();
        select.dispatchEvent(new Event('change'));
        await changed;
        found.push((await afterFrame()) - began);
    }
    return found;
})()"""


async def measure_frames(url: str) -> None:
    """Prints both."""
    async with open_tab() as tab:
        await tab.size(1200)
        await tab.call("Performance.setTimeDomain", timeDomain="threadTicks")  # durations as CPU time
        await tab.call("Performance.enable")
        for view, is_there in SCROLLED.items():
            await tab.open(f"{url}/#{view}")
            await tab.until(is_there)
            await _measure(tab, f"frames while {view} scrolls", SCROLL % ("", STEP_PX, FRAMES), "bar 16 ms")
        await tab.open(f"{url}/#nodes")
        await tab.until(SCROLLED["nodes"])
        await tab.until("document.querySelectorAll('.controls select').length")
        await _measure(tab, "updates of nodes", UPDATE % (AFTER_FRAME, UPDATES), "bar 100 ms")
        assert tab.problems == [], tab.problems


async def _measure(tab: Tab, label: str, script: str, bar: str) -> None:
    """Runs the script, which returns times, and prints them with what the main thread did meanwhile."""
    before = await _counts(tab)
    times_ms = await tab.run(script)
    spent = {name: (now - before[name]) / len(times_ms) for name, now in (await _counts(tab)).items()}
    p50, p99, most = np.percentile(times_ms, (50, 99, 100))
    print(f"{label:<55} median {p50:6.1f} ms, P99 {p99:6.1f} ms, max {most:6.1f} ms; {bar}")
    work = f"{spent['LayoutCount']:.1f} layouts, {spent['RecalcStyleCount']:.1f} recalculations of styles"
    cpu_ms = 1000 * sum(spent[name] for name in ("ScriptDuration", "LayoutDuration", "RecalcStyleDuration"))
    print(f"{'':<55} each: {cpu_ms:.1f} ms of CPU for scripts, styles and layouts; {work}", flush=True)


async def _counts(tab: Tab) -> dict[str, Any]:
    """Returns the counters of the tab since it was opened."""
    return {one["name"]: one["value"] for one in (await tab.call("Performance.getMetrics"))["metrics"]}
