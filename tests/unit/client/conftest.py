"""Tests of what lies on sockets run on both event loops: asyncio's own, and uvloop, on which multisched runs where it can."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import pytest
import uvloop

from tests.leaping_loop import LeapingLoop

ON_SOCKETS: Final = frozenset({"test_connection_pool.py", "test_http_transport.py"})


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Called by pytest-asyncio for each asynchronous test."""
    own = {"asyncio": LeapingLoop}
    return {**own, "uvloop": uvloop.new_event_loop} if item.path.name in ON_SOCKETS else own
