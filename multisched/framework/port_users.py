"""Who holds a host port: row -> host ip ("" for all addresses) -> number of pods. What `NodeView.port_users` shows of one port."""

from __future__ import annotations

from collections.abc import Mapping

PortKey = tuple[str, int]
"""Protocol and port."""

Users = dict[int, dict[str, int]]


def count_port(users: Users, row: int, ip: str, sign: int) -> None:
    """A pod that holds the port at this address comes to the row (1) or leaves it (-1)."""
    by_ip = users.setdefault(row, {})
    by_ip[ip] = by_ip.get(ip, 0) + sign
    if not by_ip[ip]:
        del by_ip[ip]
    if not by_ip:
        del users[row]


def copied(users: Mapping[int, Mapping[str, int]]) -> Users:
    """One to count in."""
    return {row: dict(by_ip) for row, by_ip in users.items()}
