"""The definition of SliceSet on the real API server: its rules at full size, the fence of versions, and the finalizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from multisched.client.slice_writer import wire_of
from multisched.framework.slice_writes import SliceCall, SliceRequest
from multisched.model.cluster_objects import SliceSet
from multisched.model.decode_objects import decode_slice_set
from multisched.model.slice_parts import SLICES_MAX, SliceAmount, SliceOffer, SliceSpec, SliceStatus
from tests.real.admin import Admin, UnexpectedAnswerError, until
from tests.real.control_plane import ControlPlane

pytestmark = pytest.mark.timeout(600)

DEFINITION: Final = Path(__file__).parents[2] / "deploy" / "crds" / "slicesets.yaml"
BLANK: Final = SliceSet(name="gpu.job.0", namespace="default")
NODES: Final = [f"0b6d4e4c-7a3f-4d0e-9c1f-{number:012d}" for number in range(SLICES_MAX)]
OTHERS: Final = tuple((f"example.com/{number:02}", 2_000) for number in range(64))
"""As many other resources as an amount may have."""
LIMIT_S: Final = 60.0


async def send(admin: Admin, call: SliceCall, known: SliceSet, **halves: Any) -> SliceSet:
    method, path, body = wire_of(SliceRequest(call, known, **halves))
    return decode_slice_set(orjson.dumps(await admin.request(method, path, orjson.loads(body))))


def spec(writes: int, cpu_milli: int) -> SliceSpec:
    offers = {uid: SliceOffer(SliceAmount(cpu_milli, 1 << 34, 20, OTHERS)) for uid in NODES}
    return SliceSpec("gpu", "job", 1, writes, offers)


def status(writes: int, amount: SliceAmount) -> SliceStatus:
    return SliceStatus(1, writes, is_complete=True, held=dict.fromkeys(NODES, amount))


async def refused(admin: Admin, known: SliceSet, **halves: Any) -> str:
    call = SliceCall.PUT_STATUS if "status" in halves else SliceCall.PUT_SPEC
    with pytest.raises(UnexpectedAnswerError) as error:
        await send(admin, call, known, **halves)
    return str(error.value)


async def test_held_never_rises_above_the_offers(tmp_path: Path) -> None:
    async with ControlPlane.start(tmp_path, controller_manager=False) as plane, Admin.open(plane) as admin:
        await plane.apply_definitions(DEFINITION)
        made = await send(admin, SliceCall.CREATE, BLANK, spec=SliceSpec("gpu", "job"))
        offered = await send(admin, SliceCall.PUT_SPEC, made, spec=spec(1, 4_000))
        assert (offered.spec, offered.status, offered.malformed) == (spec(1, 4_000), SliceStatus(), "")
        for above, field in (
            (SliceAmount(4_001, 1 << 34, 20), "cpuMilli"),
            (SliceAmount(4_000, (1 << 34) + 1, 20), "memoryBytes"),
            (SliceAmount(4_000, 1 << 34, 21), "pods"),
            (SliceAmount(4_000, 1 << 34, 20, (*OTHERS[:-1], ("example.com/63", 2_001))), "others"),
            (SliceAmount(4_000, 1 << 34, 20, (("example.com/64", 1),)), "others"),
        ):
            assert f"{field} must not rise above spec.offers" in await refused(admin, offered, status=status(1, above))
        whole = SliceAmount(4_000, 1 << 34, 20, OTHERS)
        assert "409" in await refused(admin, made, status=status(1, whole))
        held = await send(admin, SliceCall.PUT_STATUS, offered, status=status(1, whole))

        recalled = await send(admin, SliceCall.PUT_SPEC, held, spec=spec(2, 1_000))
        assert recalled.status == status(1, whole)
        lowered = await send(admin, SliceCall.PUT_STATUS, recalled, status=status(2, SliceAmount(3_000, 1 << 33, 9)))
        assert "must not rise" in await refused(admin, lowered, status=status(3, SliceAmount(3_001, 1 << 33, 9)))
        assert "status.writes must not fall" in await refused(admin, lowered, status=status(1, SliceAmount(1, 1, 1)))
        assert "spec.writes must not fall" in await refused(admin, lowered, spec=spec(1, 1_000))
        other = SliceSpec("gpu", "web", 1, 3)
        assert "it cannot be changed" in await refused(admin, lowered, spec=other)
        equal = await send(admin, SliceCall.PUT_STATUS, lowered, status=status(2, SliceAmount(3_000, 1 << 33, 9)))
        assert equal.version == lowered.version  # a write without a change supersedes nothing

        await plane.kubectl("delete", "crd/slicesets.multisched.io", "--wait=false")

        async def known() -> SliceSet:
            method, path, _ = wire_of(SliceRequest(SliceCall.READ, BLANK))
            return decode_slice_set(orjson.dumps(await admin.request(method, path)))

        async def has_deletion() -> bool:
            return (await known()).is_deleting

        await until(has_deletion, LIMIT_S)
        last = await known()
        last = await send(admin, SliceCall.PUT_STATUS, last, status=SliceStatus(1, 3, is_complete=True))
        await send(admin, SliceCall.RELEASE, last, spec=SliceSpec("gpu", "job", 1, 3))

        async def is_gone() -> bool:
            try:
                await known()
            except UnexpectedAnswerError:
                return True
            return False

        await until(is_gone, LIMIT_S)
