"""What the page costs a browser: the main thread's time of a frame while a long view scrolls, and the time of an update.

Debian's Chromium without a display and without a GPU. A frame's time is from its beginning until the browser has styled, laid
out and recorded what it paints; an update's is from the request of a document until the frame with it is done.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from tests.page.browser import open_tab

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
            .observe(document.querySelector('.view > div'), { childList: true }));
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
        for view, is_there in SCROLLED.items():
            await tab.open(f"{url}/#{view}")
            await tab.until(is_there)
            _say(f"frames while {view} scrolls", await tab.run(SCROLL % ("", STEP_PX, FRAMES)), "bar 16 ms")
        await tab.open(f"{url}/#nodes")
        await tab.until(SCROLLED["nodes"])
        await tab.until("document.querySelectorAll('.controls select').length")
        _say("updates of nodes", await tab.run(UPDATE % (AFTER_FRAME, UPDATES)), "bar 100 ms")
        assert tab.problems == [], tab.problems


def _say(label: str, times_ms: list[float], bar: str) -> None:
    p50, p99, most = np.percentile(times_ms, (50, 99, 100))
    print(f"{label:<55} median {p50:6.1f} ms, P99 {p99:6.1f} ms, max {most:6.1f} ms; {bar}", flush=True)
