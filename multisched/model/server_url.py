"""Base URLs of servers, as people and Leases write them."""

from __future__ import annotations

from urllib.parse import urlsplit


def scheme_of(url: str) -> str:
    """`http` or `https`; empty for what is no address of a server."""
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and url.isprintable()
    except ValueError:
        return ""
    return parts.scheme if is_good and " " not in url else ""
