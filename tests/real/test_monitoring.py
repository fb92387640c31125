"""Metrics of a busy program, as Prometheus' own tools judge them."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from typing import Final

import pytest
import pytest_asyncio

from tests.real.busy_program import Busy, busy
from tests.real.prometheus_server import binaries

pytestmark = [pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]

CHECK_TIMEOUT_S: Final = 60


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def program(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Busy]:
    async with busy(tmp_path_factory.mktemp("busy"), {"kubeSchedulerNames": True}) as found:
        yield found


def promtool(*arguments: str, text: str | None = None) -> str:
    """What it found fault with; empty for nothing."""
    command = [str(binaries() / "promtool"), *arguments]
    ended = subprocess.run(command, input=text, text=True, capture_output=True, check=False, timeout=CHECK_TIMEOUT_S)
    return "" if ended.returncode == 0 else ended.stdout + ended.stderr


async def test_promtool_finds_no_fault_with_the_metrics(program: Busy) -> None:
    assert promtool("check", "metrics", text=await program.text()) == ""


async def test_promtool_would_find_a_fault(program: Busy) -> None:
    text = 'multisched_x{quantile="1"} 1\n'
    assert 'should not have "quantile" label' in promtool(
        "check", "metrics", text=f"# HELP multisched_x X.\n# TYPE multisched_x gauge\n{text}"
    )
