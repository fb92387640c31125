"""Scripted stories, of events that are too rare in random ones: most of them of a former leader whose request arrives late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from multisched.model.slice_parts import NOTHING, SliceAmount, SliceOffer
from multisched.plugins.slices.borrower_slices import BorrowerSlices
from multisched.plugins.slices.lender_slices import LenderSlices
from tests.unit.plugins.loans.slices.slice_judge import Amount
from tests.unit.plugins.loans.slices.slice_world import ALLOCATABLE, DURATION_S, Replica, SliceWorld, amount_of

NODE: Final = "node-a"
WHOLE: Final = ALLOCATABLE[NODE]
HALF: Final[Amount] = (WHOLE[0] // 2, WHOLE[1] // 2, WHOLE[2] // 2)
LATE_S: Final = 2 * DURATION_S


def lender_of(replica: Replica) -> LenderSlices:
    assert isinstance(replica.machine, LenderSlices)
    return replica.machine


def borrower_of(replica: Replica) -> BorrowerSlices:
    assert isinstance(replica.machine, BorrowerSlices)
    return replica.machine


def offer(replica: Replica, amount: Amount) -> None:
    machine = lender_of(replica)
    machine.offer(NODE, NODE, SliceOffer(amount_of(amount)), room(replica))


def room(replica: Replica) -> SliceAmount:
    return amount_of(WHOLE) - replica.charged(NODE) - lender_of(replica).reserved(NODE)


def send_late(replica: Replica) -> None:
    """Sends what is needed; it arrives when another replica leads, and this one ends."""
    replica.delay_s = LATE_S
    replica.send()
    replica.start()


def fill(replica: Replica, limit: SliceAmount) -> None:
    """The replica places one pod that needs all of the room."""
    if replica.phase == "leading" and limit.is_within(amount_of(WHOLE)) and limit.cpu_milli > 0 and limit.pods > 0:
        replica.place_pod(NODE, limit, (limit.cpu_milli, max(limit.memory_bytes, 0), 1))


def fill_as_borrower(world: SliceWorld, replica: Replica) -> None:
    fill(replica, borrower_of(replica).limit(NODE, world.now_s) - replica.charged(NODE))


def half_is_held(world: SliceWorld, lender: Replica, borrower: Replica) -> None:
    """Both lead, and the borrower has claimed half of the node."""
    world.pass_calmly(20, lender, borrower)
    offer(lender, HALF)
    world.pass_calmly(5, lender, borrower)
    borrower_of(borrower).want(NODE, amount_of(HALF))
    world.pass_calmly(10, lender, borrower)


def late_raise(world: SliceWorld) -> None:
    raise_late(world, 0)


def late_raise_and_slow_successor(world: SliceWorld) -> None:
    """The write with which the successor takes over is slow, too."""
    raise_late(world, LATE_S // 2)


def raise_late(world: SliceWorld, delay_s: int) -> None:
    lender, successor, borrower, _ = world.replicas
    world.pass_calmly(20, lender, borrower)
    offer(lender, (4, 40, 4))
    world.pass_calmly(10, lender, borrower)
    offer(lender, HALF)
    send_late(lender)
    successor.delay_s = delay_s
    world.pass_calmly(LATE_S - 5, successor, borrower)
    fill(successor, room(successor))
    world.pass_calmly(10, successor, borrower)
    borrower_of(borrower).want(NODE, amount_of(WHOLE))
    world.pass_calmly(10, successor, borrower)
    fill_as_borrower(world, borrower)
    world.pass_calmly(5, successor, borrower)


def late_release(world: SliceWorld) -> None:
    lender, _, borrower, successor = world.replicas
    half_is_held(world, lender, borrower)
    borrower_of(borrower).want(NODE, NOTHING)
    send_late(borrower)
    world.pass_calmly(LATE_S - 8, lender)
    successor_leads(world, lender, successor)
    fill_as_borrower(world, successor)
    world.pass_calmly(LATE_S, lender, successor)
    lender_of(lender).withdraw(NODE)
    world.pass_calmly(5, lender, successor)
    fill(lender, room(lender))
    world.pass_calmly(5, lender, successor)


def successor_leads(world: SliceWorld, lender: Replica, successor: Replica) -> None:
    """The lease is free by now: the late request of the former leader arrives after the takeover."""
    for message in world.messages:
        message.arrives_from_s = world.now_s + 20
    world.pass_calmly(15, lender, successor)
    borrower_of(successor).want(NODE, amount_of(HALF))


def adoption_by_an_old_list(world: SliceWorld) -> None:
    lender, _, borrower, successor = world.replicas
    half_is_held(world, lender, borrower)
    borrower.start()
    world.pass_calmly(DURATION_S + 10, lender)
    (known,) = lender_of(lender).known()
    sums: dict[str, SliceAmount] = {}
    world.pass_calmly(20, lender, successor)
    borrower_of(successor).want(NODE, amount_of(HALF))
    world.pass_calmly(3, lender, successor)
    fill_as_borrower(world, successor)
    world.pass_calmly(3, lender, successor)
    lender_of(lender).adopt(known, sums)
    world.pass_calmly(3, lender, successor)
    lender_of(lender).withdraw(NODE)
    world.pass_calmly(3, lender, successor)
    fill(lender, room(lender))
    world.pass_calmly(5, lender, successor)


def edited_status(world: SliceWorld) -> None:
    """A person empties the status while pods run, and the borrower is slow to write it again."""
    lender, _, borrower, _ = world.replicas
    half_is_held(world, lender, borrower)
    fill_as_borrower(world, borrower)
    world.pass_calmly(3, lender, borrower)
    ((name, stored),) = world.api.objects.items()
    world.api.edit(name, "status", {**stored["status"], "held": {}})
    world.pass_calmly(3, lender)
    lender_of(lender).recall(NODE, NOTHING, 0)
    world.pass_calmly(3, lender)
    fill(lender, room(lender))
    world.pass_calmly(5, lender)


STORIES: Final[tuple[Callable[[SliceWorld], None], ...]] = (
    late_raise,
    late_raise_and_slow_successor,
    late_release,
    adoption_by_an_old_list,
    edited_status,
)
