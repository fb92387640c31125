"""Names of this machine that no other one can answer to."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit


def is_loopback_name(host: str) -> bool:
    """Of `HOST` or `HOST:PORT`, as in a Host header or a URL: whether it can mean this machine only."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False
