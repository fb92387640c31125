"""No event loop but the tests' own.

pytest-asyncio 1.5 asks for the current loop before its first asynchronous test; asyncio makes one, nobody closes it, and its
ResourceWarning fails whichever test runs when it is collected. With the loop set to none, asyncio makes none.
"""

from __future__ import annotations

import asyncio

asyncio.set_event_loop(None)
