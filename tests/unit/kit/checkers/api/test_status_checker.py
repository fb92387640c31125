"""The checker of statuses: their writers and their content."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from multisched.cluster.api.server import ApiServer
from multisched.config import loading
from multisched.model.wire import MERGE_PATCH
from tests.kit.checkers.api.lease_checker import LeaseChecker
from tests.kit.checkers.api.status_checker import StatusChecker
from tests.kit.plugins.headcount import CONDITION, sentence
from tests.kit.settings.setting import ASKING
from tests.kit.world.store_view import StoreView
from tests.unit.cluster.server_kit import add_pod, bind, make_server, must

BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
LEASE = "multisched-forecast"


class CheckedStatuses:
    """A status checker of the simulated domains with an API server; `process` leads the first domain."""

    def __init__(self, configuration: str = ASKING) -> None:
        self.broken: list[str] = []
        self.server: ApiServer = make_server()
        self.now_s = 0.0
        loaded = loading.parse(configuration, "test")
        leases = LeaseChecker(loaded, lambda: self.now_s, self.broken.append, lambda: False)
        leases._deadlines.add(LEASE)  # no loop runs that could look at the deadline
        leases.written(LEASE, "process", 0.0)
        pods = StoreView(self.server).pods
        self.checker = StatusChecker(self.server, loaded, leases, pods, self.broken.append)

    def write_message(self, message: str) -> None:
        status = {"conditions": [{"type": CONDITION, "status": "True", "message": message}]}
        must(self.server, "PATCH", f"{BUDGETS}/team/status", orjson.dumps({"status": status}), MERGE_PATCH)

    def faults(self) -> list[str]:
        return list(self.checker.faults())


def test_status_written_by_another_than_the_first_leader_is_a_fault() -> None:
    checked = CheckedStatuses()
    checked.checker.sent("process", f"{BUDGETS}/team/status?timeout=5000ms")
    assert checked.broken == []
    checked.checker.sent("another", f"{BUDGETS}/team/status?timeout=5000ms")
    assert checked.broken == [
        f"I9: another sent a status to {BUDGETS}/team/status while process held the lease of forecast"
    ]


def test_status_written_after_the_deadline_is_a_fault() -> None:
    checked = CheckedStatuses()
    checked.now_s = 10.5
    checked.checker.sent("process", f"{BUDGETS}/team/status")
    assert "after it renewed the lease" in checked.broken[0]


def test_status_written_without_a_status_plugin_is_a_fault() -> None:
    checked = CheckedStatuses(ASKING.replace("headcount:Headcount", "faulty:Faulty"))
    checked.checker.sent("process", f"{BUDGETS}/team/status")
    assert "no plugin says any" in checked.broken[0]
    assert checked.faults() == []


@pytest.mark.parametrize(("message", "is_true"), [(sentence(1), True), (sentence(2), False), ("", False)])
def test_status_of_each_budget_must_have_its_pod_count_in_the_end(message: str, is_true: bool) -> None:
    checked = CheckedStatuses()
    must(checked.server, "POST", BUDGETS, {"metadata": {"name": "team"}, "spec": {"maxUnavailable": 1}})
    for name in ("placed", "waiting"):
        add_pod(checked.server, name)
    answer: Any = bind(checked.server, "placed", "n1")
    assert answer[0] == 201
    checked.write_message(message)
    assert checked.faults() == ([] if is_true else [f"I4: budget default/team says {message!r}, not {sentence(1)!r}"])
