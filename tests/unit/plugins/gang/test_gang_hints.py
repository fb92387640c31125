"""What wakes members of gangs: room, once they could start; who waits for other members is sorted by the queue itself."""

from __future__ import annotations

from msgspec.structs import replace

from multisched.framework.events import Hint
from multisched.model.gang import ACK_MIN, ACK_NAME
from multisched.model.objects import Pod
from multisched.plugins.gang.gang_scheduling import GangScheduling
from multisched.state.gang_roster import GangRoster
from multisched.testing.builders import make_context, make_node


def test_freed_capacity_requeues_only_members_of_completable_gangs() -> None:
    roster = GangRoster()
    plugin = GangScheduling(replace(make_context(), gangs=roster))
    a, b = (Pod("team", name, f"uid-{name}", 1, labels={ACK_NAME: "g", ACK_MIN: "2"}) for name in "ab")

    def hints(pod: Pod) -> set[Hint]:
        registered = plugin.events_to_register()
        return {one.hint(pod, None, make_node("n")) for one in registered if one.hint is not None}

    roster.set(a)
    assert hints(a) == {Hint.SKIP}, "a gate would turn each of them back, with each node that comes"
    roster.set(b)
    assert hints(a) == {Hint.QUEUE}
    assert hints(Pod("team", "alone", "uid-alone", 1)) == {Hint.SKIP}
