"""SliceSet as JSON: what is written is read again, and an edit by hand makes its half untrusted and nothing else."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from multisched.model.cluster_objects import SliceSet
from multisched.model.decode_objects import decode_slice_set
from multisched.model.decode_slices import spec_document, status_document
from multisched.model.slice_parts import (
    EPOCH_MAX,
    SLICES_MAX,
    SliceAmount,
    SliceOffer,
    SliceSpec,
    SliceStatus,
    bucket_of,
    buckets_for,
)

KNOWN = SliceSet(name="gpu.job.0", namespace="multisched-system", uid="u", version=7)
SPEC = SliceSpec("gpu", "job", 3, 9, {"n1": SliceOffer(SliceAmount(4_000, 1 << 34, 20), 1_800_000_000, 1_700_000_000)})
STATUS = SliceStatus(2, 5, is_complete=True, held={"n1": SliceAmount(1_000, 1 << 30, 3)})


def document(spec: SliceSpec = SPEC, status: SliceStatus = STATUS) -> Any:
    made = orjson.loads(spec_document(KNOWN, spec))
    made["status"] = orjson.loads(status_document(KNOWN, status))["status"]
    return made


def read(made: Any) -> SliceSet:
    return decode_slice_set(orjson.dumps(made))


def test_halves_are_read_as_written() -> None:
    found = read(document())
    assert (found.spec, found.status, found.malformed) == (SPEC, STATUS, "")
    assert (found.key, found.uid, found.version) == ("multisched-system/gpu.job.0", "u", 7)
    assert (found.lender_epoch, found.borrower_epoch, found.has_finalizer, found.is_deleting) == (3, 2, True, False)


def test_object_that_was_only_created_offers_and_holds_nothing() -> None:
    made = orjson.loads(spec_document(SliceSet(name="gpu.job.0", namespace="s"), SliceSpec("gpu", "job")))
    assert "resourceVersion" not in made["metadata"]
    found = read({**made, "metadata": {**made["metadata"], "uid": "u", "resourceVersion": "1"}})
    assert (found.spec, found.status, found.malformed) == (SliceSpec("gpu", "job"), SliceStatus(), "")


@pytest.mark.parametrize(
    ("half", "path", "value", "words"),
    [
        ("spec", ("offers", "n1", "cpuMilli"), 5_000, "spec.checksum"),
        ("spec", ("offers", "n1", "cpuMilli"), -1, "spec.offers[n1]"),
        ("spec", ("offers", "n1", "memoryBytes"), "1Gi", "spec.offers[n1]"),
        ("spec", ("offers", "n1", "until"), "tomorrow", "spec.offers[n1]"),
        ("spec", ("offers", "n2"), {"cpuMilli": 1, "memoryBytes": 1, "pods": 1}, "spec.checksum"),
        ("spec", ("offers",), {}, "spec.checksum"),
        ("spec", ("offers",), [], "spec: "),
        ("spec", ("lenderEpoch",), 4, "spec.checksum"),
        ("spec", ("lenderEpoch",), EPOCH_MAX + 1, "spec: "),
        ("spec", ("lender",), "job", "spec.lender"),
        ("spec", ("checksum",), "", "spec.checksum"),
        ("spec", ("offers",), {f"n{number}": {} for number in range(SLICES_MAX + 1)}, "spec.offers: 257 entries"),
        ("status", ("held",), {}, "status.checksum"),
        ("status", ("held", "n1", "pods"), 2, "status.checksum"),
        ("status", ("held", "n1"), None, "status.held[n1]"),
        ("status", ("borrowerEpoch",), 9, "status.checksum"),
        ("status", ("complete",), False, "status.checksum"),
        ("status", ("writes",), 0, "status.checksum"),
    ],
)
def test_half_edited_by_hand_is_not_trusted_and_reported(
    half: str, path: tuple[str, ...], value: Any, words: str
) -> None:
    made = document()
    place = made[half]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    found = read(made)
    assert words in found.malformed
    assert "writes it again" in found.malformed
    assert (found.spec, found.status) == ((None, STATUS) if half == "spec" else (SPEC, None))


def test_copy_under_another_uid_is_not_trusted() -> None:
    made = document()
    made["metadata"]["uid"] = "other"
    found = read(made)
    assert (found.spec, found.status) == (None, None)


@pytest.mark.parametrize(
    "text",
    [b'{"metadata": {"name": "gpu.job.0"}, "spec": {"lender": "\xff"}}', b'{"metadata": {"name": "x"}, "spec": 7}'],
)
def test_unreadable_object_is_malformed_and_offers_nothing(text: bytes) -> None:
    found = decode_slice_set(text)
    assert found.malformed
    assert found.spec is None


def test_epoch_of_an_edited_half_leaves_epochs_above() -> None:
    made = document()
    made["spec"]["lenderEpoch"] = EPOCH_MAX
    assert (read(made).spec, read(made).lender_epoch) == (None, 0)


def test_nodes_are_spread_over_objects_by_their_names() -> None:
    buckets = buckets_for(5_000)
    assert buckets == 64
    counts = [0] * buckets
    for number in range(5_000):
        counts[bucket_of(f"node-{number}.example", buckets)] += 1
    assert max(counts) <= SLICES_MAX
    assert [buckets_for(nodes) for nodes in (0, 128, 129)] == [1, 1, 2]
