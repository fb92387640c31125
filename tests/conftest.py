"""What every test run shares: how hard hypothesis looks, and which cluster the integration tests stand on.

Owns no state. `test` is the profile of every run: the same examples each time, so that a red run is a change and not
luck. `make soak` asks for `soak`: many more examples, new ones each night, a failing one printed so that it replays.
No profile has a deadline: a slow machine is no bug, and pytest-timeout ends a test that hangs.

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
"""Looking for cycles is a tenth of a run with Python's 700; the program looks seldom too (`garbage.collect_seldom`)."""

TEST_EXAMPLES = 200
SOAK_EXAMPLES = 10_000
MUTATION_EXAMPLES = 50
"""The same tests run hundreds of times, once for each mutant; fewer examples make them weaker, never stronger."""

settings.register_profile("test", max_examples=TEST_EXAMPLES, derandomize=True, deadline=None, print_blob=True)
settings.register_profile("mutation", max_examples=MUTATION_EXAMPLES, derandomize=True, deadline=None, database=None)
settings.register_profile("soak", max_examples=SOAK_EXAMPLES, deadline=None, print_blob=True)
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
    parser.addoption(
        "--cluster",
        choices=("embedded", "real"),
        default="embedded",
        help="where tests/integration run: our own API server, or the control plane of `make controlplane`",
    )
