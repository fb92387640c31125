"""Bearer tokens: fixed tokens of the embedded cluster, and signed tokens of service accounts.

Owns the signing key, generated at first use, and a bounded cache of verified tokens. A token becomes invalid when it
expires, or when its service account is deleted or recreated.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import orjson

from multisched.cluster.base.metadata import IdentityGenerator
from multisched.cluster.base.request import UserInfo
from multisched.cluster.base.storage import Store

if TYPE_CHECKING:
    from multisched.cluster.access.signing_key import SigningKey

ISSUER = "https://kubernetes.default.svc.cluster.local"
AUDIENCES = (ISSUER,)
TOKEN_S = 3_600
"""Default lifetime of a token."""

TOKEN_S_MIN = 600
VERIFIED_MAX = 1_024
"""Maximum number of cached verified tokens."""


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


class Tokens:
    """Issues and authenticates bearer tokens."""

    def __init__(self, store: Store, minting: IdentityGenerator) -> None:
        self._store = store
        self._minting = minting
        self._fixed: dict[bytes, UserInfo] = {}
        self._key: SigningKey | None = None
        self._verified: dict[bytes, dict[str, Any]] = {}

    def add_fixed(self, token: str, user: UserInfo) -> None:
        """Accepts a token without expiry, as --token-auth-file does."""
        self._fixed[_digest(token)] = user

    def issue(
        self, namespace: str, name: str, uid: str, audiences: Sequence[str], lifetime_s: int, bound: dict[str, str]
    ) -> str:
        """Issues a signed token for a service account."""
        now = int(self._minting.clock.now().timestamp())
        private: dict[str, Any] = {"namespace": namespace, "serviceaccount": {"name": name, "uid": uid}}
        if bound:
            private[bound["kind"].lower()] = {"name": bound["name"], "uid": bound["uid"]}
        claims = {
            "aud": list(audiences) or list(AUDIENCES),
            "exp": now + lifetime_s,
            "iat": now,
            "iss": ISSUER,
            "jti": self._minting.uid(),
            "kubernetes.io": private,
            "nbf": now,
            "sub": f"system:serviceaccount:{namespace}:{name}",
        }
        head = _encode(orjson.dumps({"alg": "ES256", "kid": "multisched", "typ": "JWT"}))
        signed = f"{head}.{_encode(orjson.dumps(claims))}"
        return f"{signed}.{_encode(self._sign(signed.encode()))}"

    def authenticate(self, token: str, audiences: Sequence[str] = AUDIENCES) -> UserInfo | None:
        """Returns the token's user; None for an invalid token."""
        digest = _digest(token)
        fixed = self._fixed.get(digest)
        if fixed is not None:
            return fixed
        claims = self._verified.get(digest)
        if claims is None:
            claims = self._verify(token)
            if claims is None:
                return None
            if len(self._verified) >= VERIFIED_MAX:
                self._verified.clear()
            self._verified[digest] = claims
        return self._user_of(claims, audiences)

    def _user_of(self, claims: dict[str, Any], audiences: Sequence[str]) -> UserInfo | None:
        if claims["exp"] <= self._minting.clock.now().timestamp():
            return None
        if audiences and not set(audiences) & set(claims["aud"]):
            return None
        private = claims["kubernetes.io"]
        namespace, account = private["namespace"], private["serviceaccount"]
        stored = self._store.collection("serviceaccounts").objects.get(f"{namespace}/{account['name']}")
        if stored is None or stored.uid != account["uid"]:
            return None
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
        extra = {"authentication.kubernetes.io/credential-id": (f"JTI={claims['jti']}",)}
        return UserInfo(claims["sub"], groups, account["uid"], extra)

    def _sign(self, data: bytes) -> bytes:
        if self._key is None:
            from multisched.cluster.access.signing_key import SigningKey

            self._key = SigningKey()
        return self._key.sign(data)

    def _verify(self, token: str) -> dict[str, Any] | None:
        parts = token.split(".")
        if len(parts) != 3 or self._key is None:
            return None
        try:
            if not self._key.has_signed(f"{parts[0]}.{parts[1]}".encode(), _decode(parts[2])):
                return None
            claims: dict[str, Any] = orjson.loads(_decode(parts[1]))
        except (ValueError, binascii.Error):
            return None
        return claims


def _digest(token: str) -> bytes:
    # Only digests are cached, so that tokens stay in memory only for the duration of a request.
    return hashlib.sha256(token.encode()).digest()
