"""In which order the points of a profile are called in one attempt, and in which order they are undone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from multisched.framework.dependency import Dependency
from multisched.framework.points import PermitResult
from multisched.framework.reasons import ReasonTable
from multisched.framework.status import Status
from tests.integration.plugins.faulty import BENIGN
from tests.integration.plugins.program_cluster import ProgramCluster, in_virtual_time, one_domain, open_cluster

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


async def one_pod(cluster: ProgramCluster) -> None:
    Diary.written.clear()
    await cluster.node("n")
    await cluster.pod("p", cpu="1")


def test_extension_points_and_plugins_run_in_order() -> None:
    async def main() -> None:
        async with open_cluster(profile()) as cluster:
            await one_pod(cluster)
            await cluster.bound("p")
            await cluster.at_rest()

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

    in_virtual_time(main)


def test_a_refusal_at_permit_undoes_reserve_in_reverse() -> None:
    async def main() -> None:
        async with open_cluster(profile(refuses=True)) as cluster:
            await one_pod(cluster)
            await cluster.until(lambda: cluster.worker().counters.refused == 1)

            after = Diary.written[Diary.written.index("reserve A") :]
            assert after[:6] == ["reserve A", "reserve B", "permit A", "permit B", "unreserve B", "unreserve A"]
            assert len(cluster.program.cache) == 0

    in_virtual_time(main)
