"""Keeps looptime's plugin from making event loops for tests that have none.

Before each test it asks the policy for its loop, and in a process in which nobody has ever set one the policy makes
one, which nobody closes: the ResourceWarning then fails whatever test runs when it is collected.
"""

from __future__ import annotations

import asyncio

asyncio.set_event_loop(None)
