"""Host ports in use: which rows hold pods that use a port, and on which addresses. Used by `NodeTable` only."""

from __future__ import annotations

from collections.abc import Mapping

from multisched.framework.port_users import PortKey, Users, count_port
from multisched.model.objects import Pod

_NO_USERS: Mapping[int, Mapping[str, int]] = {}


class PortUsers:
    """Owns (protocol, port) -> row -> ip -> number of pods, without empty entries."""

    __slots__ = ("_by_port",)

    def __init__(self) -> None:
        self._by_port: dict[PortKey, Users] = {}

    def of(self, protocol: str, port: int) -> Mapping[int, Mapping[str, int]]:
        """Returns row -> ip -> number of pods that use the port there."""
        return self._by_port.get((protocol, port), _NO_USERS)

    @property
    def by_port(self) -> Mapping[PortKey, Mapping[int, Mapping[str, int]]]:
        """All ports in use."""
        return self._by_port

    def account(self, row: int, pod: Pod, sign: int) -> None:
        """Adds a pod with host ports to the row (`sign` 1) or removes it (-1)."""
        for port in pod.spec.host_ports:
            key = (port.protocol, port.port)
            users = self._by_port.setdefault(key, {})
            count_port(users, row, port.ip, sign)
            if not users:
                del self._by_port[key]

    def forget_row(self, row: int) -> None:
        for key in [key for key, users in self._by_port.items() if row in users]:
            del self._by_port[key][row]
            if not self._by_port[key]:
                del self._by_port[key]
