"""Host names that always mean this machine."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit


def is_loopback_name(host: str) -> bool:
    """Reports whether `HOST` or `HOST:PORT`, as in a Host header or a URL, always means this machine."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False
