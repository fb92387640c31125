"""The demo's view: redrawn on a terminal, lines of change elsewhere."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from multisched.observe.progress import DomainProgress, progress_view, quantile

KUBECONFIG = Path("/somewhere/[bold]/kubeconfig")


def row(bound: int) -> DomainProgress:
    return DomainProgress("job", queued=1000 - bound, bound=bound, binds_per_s=500.0, p50_ms=12.34, p99_ms=1500.0)


def test_without_a_terminal_only_changes_are_printed() -> None:
    stream = io.StringIO()
    with progress_view(KUBECONFIG, stream) as view:
        for bound in (0, 10, 10, 1000):
            view.update([row(bound)], 1.5)
    assert stream.getvalue().splitlines() == [
        "export KUBECONFIG=/somewhere/[bold]/kubeconfig",
        "   1.5s job: queued 1000, bound 0, 500 binds/s, p50 12.3 ms, p99 1.50 s",
        "   1.5s job: queued 990, bound 10, 500 binds/s, p50 12.3 ms, p99 1.50 s",
        "   1.5s job: queued 0, bound 1000, 500 binds/s, p50 12.3 ms, p99 1.50 s",
    ]


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([], 0.5, 0.0),
        ([7.0], 0.99, 7.0),
        ([1.0, 2.0, 3.0, 4.0], 0.5, 2.0),
        ([float(n) for n in range(1, 101)], 0.99, 99.0),
    ],
)
def test_quantiles_are_nearest_rank(values: list[float], share: float, expected: float) -> None:
    assert quantile(values, share) == expected


class Gone(io.StringIO):
    """A pipe whose reader has ended."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_reader_that_has_gone_is_told_to_the_caller() -> None:
    with pytest.raises(BrokenPipeError), progress_view(KUBECONFIG, Gone()):
        pass
