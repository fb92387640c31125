"""What every test run shares: how hard hypothesis looks, and which cluster the integration tests stand on.

Owns no state. `make test` uses the hypothesis profile `test`, CI (`WHOLE=1`) the profile `ci` with more examples. Both use the same
examples in each run, so that a red run is caused by a change. `make soak` uses `soak`: many more examples, new ones in each
run, a failing one printed so that it can be replayed. No profile has a deadline: pytest-timeout ends a test that hangs.

Tests that play random stories of their own play as many as the profile has examples for (`settings().max_examples // 5`):
with `ci` twice as many as with `test`. Tests marked `slow` run with `--slow` only: commands of documents, demos, whole
fleets. They take minutes, and each repeats at the level of a process, or of a large cluster, what faster tests show.

No event loop but the tests' own: the plugins for asynchronous tests ask asyncio for the current loop before their first
test; where nobody has ever set one asyncio makes one, nobody closes it, and its ResourceWarning fails whichever test runs
when it is collected. With the loop set to none, asyncio makes none.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

asyncio.set_event_loop(None)
gc.set_threshold(10_000, 20, 50)
"""Looking for cycles is a tenth of a run with Python's 700; the program looks seldom too (`garbage.set_gc_thresholds`)."""

LOOPTIME_NOOP_CYCLES = 1
"""Iterations of the loop before looptime advances its time. Its 42 are most of the cost of a test that only waits."""

settings.register_profile("test", max_examples=50, derandomize=True, deadline=None, database=None, print_blob=True)
settings.register_profile("ci", settings.get_profile("test"), max_examples=100)
settings.register_profile("soak", max_examples=10_000, deadline=None, print_blob=True)
settings.load_profile("test")


@pytest.fixture(scope="session", autouse=True)
def _runtime_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What programs under test keep for their user goes with the run."""
    os.environ["XDG_RUNTIME_DIR"] = str(tmp_path_factory.mktemp("runtime"))
    yield
    del os.environ["XDG_RUNTIME_DIR"]


@pytest.fixture(autouse=True)
def _garbage_is_collected() -> Iterator[None]:
    """A command that leaves the collector off would have its worker keep all that later tests make: gigabytes."""
    yield
    assert gc.isenabled()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run tests marked slow, too")
    parser.addoption(
        "--cluster",
        choices=("embedded", "real"),
        default="embedded",
        help="where tests/integration run: our own API server, or the control plane of `make controlplane`",
    )


def pytest_collection_finish() -> None:
    """Excludes modules and tests, a million objects that stay until the end, from each later garbage collection."""
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("looptime"):
            item.add_marker(pytest.mark.looptime(noop_cycles=LOOPTIME_NOOP_CYCLES))
    if not config.getoption("--slow"):
        slow = [item for item in items if item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in set(slow)]
