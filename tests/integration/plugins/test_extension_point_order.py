"""In which order the points of a profile are called in one attempt, and in which order they are undone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from multisched.framework.dependency import Dependency
from multisched.framework.points import PermitResult
from multisched.framework.reasons import ReasonTable
from multisched.framework.status import Status
from tests.integration.plugins.faulty import BENIGN
from tests.integration.plugins.house import House, in_virtual_time, one_domain, open_house

WATCHED = ("PreEnqueue", "PreFilter", "Filter", "PreScore", "Score", "Reserve", "Permit", "PreBind", "Bind", "PostBind")
METHODS = {
    method: point
    for point in (*WATCHED, "NormalizeScore", "Unreserve")
    for method in BENIGN[point]
    if point not in ("NormalizeScore", "Unreserve") or method in ("normalize_score", "unreserve")
}


class Diary:
    """Writes down every call about a pod; `args`: its name, and whether it refuses at Permit."""

    written: ClassVar[list[str]] = []

    def __init__(self, args: Mapping[str, Any]) -> None:
        self.name = str(args["name"])
        self.depends_on = Dependency.ATTEMPT
        self.reasons = ReasonTable(self.name)
        for method in METHODS:
            benign = next(methods[method] for methods in BENIGN.values() if method in methods)
            setattr(self, method, self._noted(method, benign))
        if args.get("refuses"):
            self.permit = self._refuse

    def sign(self, pod: Any) -> str:
        return ""

    def _noted(self, method: str, benign: Any) -> Any:
        def noted(*args: Any, **options: Any) -> Any:
            Diary.written.append(f"{method} {self.name}")
            return benign(*args, **options)

        return noted

    def _refuse(self, *args: Any) -> Any:
        Diary.written.append(f"permit {self.name}")
        return PermitResult(Status.unschedulable("no"))


class First(Diary):
    """Two plugins of one profile have two names."""


class Second(Diary):
    """The later one."""


def profile(*, refuses: bool = False) -> str:
    path = __name__
    return one_domain(
        {"name": f"{path}:First", "args": {"name": "A"}},
        {"name": f"{path}:Second", "args": {"name": "B", "refuses": refuses}},
    )


async def one_pod(house: House) -> None:
    Diary.written.clear()
    await house.node("n")
    await house.pod("p", cpu="1")


def test_extension_points_and_plugins_run_in_order() -> None:
    async def story() -> None:
        async with open_house(profile()) as house:
            await one_pod(house)
            await house.bound("p")
            await house.at_rest()

            assert Diary.written == [
                f"{method} {name}"
                for methods in (
                    ["pre_enqueue"],
                    ["pre_filter"],
                    ["filter"],
                    ["pre_score"],
                )
                for method in methods
                for name in "AB"
            ] + ["score A", "normalize_score A", "score B", "normalize_score B"] + [
                f"{method} {name}" for method in ("reserve", "permit", "pre_bind", "bind", "post_bind") for name in "AB"
            ]

    in_virtual_time(story)


def test_a_refusal_at_permit_undoes_reserve_in_reverse() -> None:
    async def story() -> None:
        async with open_house(profile(refuses=True)) as house:
            await one_pod(house)
            await house.until(lambda: house.worker().counters.refused == 1)

            after = Diary.written[Diary.written.index("reserve A") :]
            assert after[:6] == ["reserve A", "reserve B", "permit A", "permit B", "unreserve B", "unreserve A"]
            assert len(house.program.cache) == 0

    in_virtual_time(story)
