"""Base URLs of servers, as written by users and in Leases."""

from __future__ import annotations

from urllib.parse import urlsplit


def scheme_of(url: str) -> str:
    """Returns `http` or `https`; empty if this is not the address of a server."""
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and url.isprintable()
    except ValueError:
        return ""
    return parts.scheme if is_good and " " not in url else ""
