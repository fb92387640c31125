"""The judge of statuses: who writes them, and whether they are true."""

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


class Judged:
    """A checker of the simulated domains over a server, in which `process` leads the first of them."""

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

    def say(self, message: str) -> None:
        status = {"conditions": [{"type": CONDITION, "status": "True", "message": message}]}
        must(self.server, "PATCH", f"{BUDGETS}/team/status", orjson.dumps({"status": status}), MERGE_PATCH)

    def faults(self) -> list[str]:
        return list(self.checker.faults())


def test_status_written_by_another_than_the_first_leader_is_a_fault() -> None:
    judged = Judged()
    judged.checker.sent("process", f"{BUDGETS}/team/status?timeout=5000ms")
    assert judged.broken == []
    judged.checker.sent("another", f"{BUDGETS}/team/status?timeout=5000ms")
    assert judged.broken == [
        f"I9: another sent a status to {BUDGETS}/team/status while process held the lease of forecast"
    ]


def test_status_written_after_the_deadline_is_a_fault() -> None:
    judged = Judged()
    judged.now_s = 10.5
    judged.checker.sent("process", f"{BUDGETS}/team/status")
    assert "after it renewed the lease" in judged.broken[0]


def test_status_written_without_a_status_plugin_is_a_fault() -> None:
    judged = Judged(ASKING.replace("headcount:Headcount", "faulty:Faulty"))
    judged.checker.sent("process", f"{BUDGETS}/team/status")
    assert "no plugin says any" in judged.broken[0]
    assert judged.faults() == []


@pytest.mark.parametrize(("said", "is_true"), [(sentence(1), True), (sentence(2), False), ("", False)])
def test_status_of_each_budget_must_have_its_pod_count_in_the_end(said: str, is_true: bool) -> None:
    judged = Judged()
    must(judged.server, "POST", BUDGETS, {"metadata": {"name": "team"}, "spec": {"maxUnavailable": 1}})
    for name in ("placed", "waiting"):
        add_pod(judged.server, name)
    answer: Any = bind(judged.server, "placed", "n1")
    assert answer[0] == 201
    judged.say(said)
    assert judged.faults() == ([] if is_true else [f"I4: budget default/team says {said!r}, not {sentence(1)!r}"])
