"""Users of one host port: row -> host IP ("" for all addresses) -> number of pods. `NodeView.port_users` returns it."""

from __future__ import annotations

from collections.abc import Mapping

PortKey = tuple[str, int]
"""Protocol and port."""

Users = dict[int, dict[str, int]]


def count_port(users: Users, row: int, ip: str, sign: int) -> None:
    """Adds a pod that uses the port at this address to the row (`sign` 1) or removes it (-1)."""
    by_ip = users.setdefault(row, {})
    by_ip[ip] = by_ip.get(ip, 0) + sign
    if not by_ip[ip]:
        del by_ip[ip]
    if not by_ip:
        del users[row]


def copied(users: Mapping[int, Mapping[str, int]]) -> Users:
    """Returns a copy that can be changed."""
    return {row: dict(by_ip) for row, by_ip in users.items()}
