"""Which loans are sliced: those between domains with different Leases, by configuration alone."""

from __future__ import annotations

import pytest

from multisched.config import loading
from multisched.config.loans import borrowers_of, loans_use
from multisched.config.nodes import NodeRouter, NodeSelection, lease_groups_of, sliced_lenders
from multisched.plugins.loans.parts import loans_class
from multisched.plugins.loans.sliced_loans import SlicedLoans
from multisched.testing.builders import make_node

HEAD = "apiVersion: multisched.io/v1\nkind: MultischedConfiguration\n"
LIMITED = "{from: gpu, sharePercent: 50}"
IDLE = "{from: gpu, kind: idle, return: {notice: 1m}}"
UNLIMITED = "{from: gpu}"


def text(loans: str, lease: str) -> str:
    return f"{HEAD}lease: {{{lease}}}\ndomains:\n- name: forecast\n- name: gpu\n- name: job\n  loans: [{loans}]\n"


@pytest.mark.parametrize(
    ("loans", "lease", "is_sliced"),
    [
        (LIMITED, "perDomain: true", True),
        (LIMITED, "perDomain: false", False),
        (LIMITED, "perDomain: true, enabled: false", False),
        (UNLIMITED, "perDomain: true", False),
        (IDLE, "perDomain: true", False),
        (f"{LIMITED}, {IDLE}", "perDomain: true", False),
        (f"{LIMITED}, {{from: forecast}}", "perDomain: true", True),
    ],
)
def test_loans_of_free_capacity_with_limits_need_no_common_lease(loans: str, lease: str, is_sliced: bool) -> None:
    configuration = loading.parse(text(loans, lease), "f")
    groups = lease_groups_of(configuration)
    if "enabled" not in lease:
        assert (groups["gpu"] != groups["job"]) == is_sliced
    assert ("gpu" in sliced_lenders(NodeSelection.of(configuration))["job"]) == is_sliced
    of_gpu = [loan for one in borrowers_of(configuration) for loan in one.loans if loan.lender == "gpu"]
    assert {loan.is_sliced for loan in of_gpu} in ({is_sliced}, set())


def test_selection_of_an_older_version_has_one_lease_for_both_sides() -> None:
    written = NodeSelection.of(loading.parse(text(LIMITED, "perDomain: true"), "f")).written()
    assert '"separable":["gpu"]' in written
    older = NodeSelection.read(written.replace(',"separable":["gpu"]', ""))
    assert older is not None
    assert sliced_lenders(older)["job"] == frozenset()


def test_selection_without_sliced_loans_is_written_as_before() -> None:
    written = NodeSelection.of(loading.parse(text(IDLE, "perDomain: true"), "f")).written()
    assert "separable" not in written


def test_both_sides_get_the_sliced_plugin_and_others_do_not() -> None:
    configuration = loading.parse(text(LIMITED, "perDomain: true"), "f")
    borrowers = borrowers_of(configuration)
    for domain in ("gpu", "job"):
        use = loans_use(domain, borrowers)
        assert use is not None
        assert loans_class(use.args) is SlicedLoans
    assert loans_use("forecast", borrowers) is None


def test_domain_that_uses_rows_of_the_lender_leaves_room_for_its_borrowers() -> None:
    written = text(LIMITED, "perDomain: true") + "- name: chat\n  loans: [{from: gpu}]\n"
    (borrower,) = borrowers_of(loading.parse(written, "f"))
    assert dict(borrower.loans[0].users) == {
        "gpu": frozenset({"gpu-scheduler"}),
        "chat": frozenset({"chat-scheduler"}),
    }
    use = loans_use("chat", (borrower,))
    assert use is not None
    assert loans_class(use.args) is SlicedLoans


def test_sliced_rows_are_known_by_their_home() -> None:
    router = NodeRouter(loading.parse(text(LIMITED, "perDomain: true"), "f"))
    lent, own = (
        make_node("g", labels={"multisched.io/domain": "gpu"}),
        make_node("j", labels={"multisched.io/domain": "job"}),
    )
    assert [router.sliced_for("job")(node) for node in (lent, own)] == [True, False]
    assert [router.usable_by("job")(node) for node in (lent, own)] == [True, True]
    assert not router.sliced_for("gpu")(lent)
