"""The driver of slices: how often it writes, and a process that stops, or loses its lease, during a takeover."""

from __future__ import annotations

import pytest

from multisched.framework.slice_writes import SliceAnswer, SliceCall, SliceReply, SliceRequest
from multisched.model.cluster_objects import SliceSet
from multisched.plugins.loans.sliced_loans import SlicedLoans
from multisched.plugins.slices.driver import NO_PAUSE
from tests.unit.plugins.loans.test_loan_limits import borrower, domain_of, plugin_of


def test_nothing_is_settled_of_slices_that_are_not_owned() -> None:
    job = borrower("job", "test", is_sliced=True, users={"lender": frozenset({"lender-scheduler"})})
    plugin = plugin_of(domain_of(job))
    assert isinstance(plugin, SlicedLoans)
    plugin.settle_slices()
    (shown,) = plugin.driver.document()
    assert (shown["isOwned"], shown["role"]) == (False, "borrower")


WRITE = SliceRequest(SliceCall.PUT_STATUS, SliceSet(name="gpu.job.0"))
READ = SliceRequest(SliceCall.READ, SliceSet(name="gpu.job.0"))
DONE = SliceReply(SliceAnswer.DONE)
CONFLICT = SliceReply(SliceAnswer.CONFLICT)
UNKNOWN = SliceReply(SliceAnswer.UNKNOWN)


@pytest.mark.parametrize(
    ("exchanges", "lengths_s"),
    [
        ([(WRITE, DONE, 10.0), (WRITE, DONE, 11.0), (WRITE, DONE, 13.0), (WRITE, DONE, 17.0)], [1.0, 2.0, 4.0, 4.0]),
        ([(WRITE, DONE, 10.0), (WRITE, DONE, 15.0)], [1.0, 1.0]),
        ([(WRITE, DONE, 10.0), (WRITE, DONE, 10.0), (WRITE, DONE, 10.0)], [1.0, 1.0, 1.0]),
        ([(WRITE, DONE, 10.0), (WRITE, CONFLICT, 11.0), (READ, DONE, 11.0), (WRITE, DONE, 11.0)], [1.0, 0.0, 0.0, 2.0]),
        ([(WRITE, UNKNOWN, 10.0), (WRITE, UNKNOWN, 11.0), (WRITE, DONE, 12.0)], [0.5, 1.0, 1.0]),
    ],
    ids=["changes go on", "changes have paused", "several objects together", "another write came first", "no answers"],
)
def test_pauses_double_while_changes_go_on(
    exchanges: list[tuple[SliceRequest, SliceReply, float]], lengths_s: list[float]
) -> None:
    pause, found = NO_PAUSE, list[float]()
    for request, reply, at_s in exchanges:
        pause = pause.after(request, reply, at_s, at_s, 4.0)
        found.append(pause.until_s - at_s)
    assert found == lengths_s
