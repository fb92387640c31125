"""The key that signs tokens of service accounts."""

from __future__ import annotations

import pytest

from multisched.cluster.access.signing_key import COORDINATE_BYTES, SigningKey

DATA = b"head.claims"


def test_key_verifies_its_own_signature() -> None:
    key = SigningKey()
    assert key.has_signed(DATA, key.sign(DATA))
    assert len(key.sign(DATA)) == 2 * COORDINATE_BYTES


@pytest.mark.parametrize(
    "signature",
    [b"", bytes(2 * COORDINATE_BYTES), bytes(range(200)), SigningKey().sign(DATA)],
    ids=["none", "zeros", "too long", "of another key"],
)
def test_key_rejects_foreign_signatures(signature: bytes) -> None:
    assert not SigningKey().has_signed(DATA, signature)


def test_signature_does_not_verify_other_data() -> None:
    key = SigningKey()
    assert not key.has_signed(DATA + b"!", key.sign(DATA))
