"""The key that signs service accounts' tokens, by ES256 (RFC 7518, section 3.4). Imported by the first token: cryptography is large."""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils

COORDINATE_BYTES = 32


class SigningKey:
    """One key pair, made with it."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())

    def sign(self, data: bytes) -> bytes:
        """Both coordinates, one after the other."""
        r, s = utils.decode_dss_signature(self._key.sign(data, ec.ECDSA(hashes.SHA256())))
        return r.to_bytes(COORDINATE_BYTES, "big") + s.to_bytes(COORDINATE_BYTES, "big")

    def has_signed(self, data: bytes, signature: bytes) -> bool:
        r = int.from_bytes(signature[:COORDINATE_BYTES], "big")
        s = int.from_bytes(signature[COORDINATE_BYTES:], "big")
        try:
            self._key.public_key().verify(utils.encode_dss_signature(r, s), data, ec.ECDSA(hashes.SHA256()))
        except (InvalidSignature, ValueError):
            return False
        return True
