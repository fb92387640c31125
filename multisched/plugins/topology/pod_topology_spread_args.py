"""The arguments of PodTopologySpread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from multisched.framework.plugin_args import Fields
from multisched.model.selectors import is_qualified_name

DO_NOT_SCHEDULE: Final = "DoNotSchedule"
SCHEDULE_ANYWAY: Final = "ScheduleAnyway"
HONOR: Final = "Honor"
IGNORE: Final = "Ignore"
SYSTEM: Final = "System"
LIST: Final = "List"
INT32_MAX: Final = 2**31 - 1

_CONSTRAINT_FIELDS: Final = (
    "maxSkew",
    "topologyKey",
    "whenUnsatisfiable",
    "labelSelector",
    "minDomains",
    "nodeAffinityPolicy",
    "nodeTaintsPolicy",
    "matchLabelKeys",
)


class DefaultConstraint(msgspec.Struct, frozen=True):
    """A spread constraint for pods that have none; its selector is derived from the pod's services and controller."""

    max_skew: int
    topology_key: str
    when_unsatisfiable: str
    """DoNotSchedule or ScheduleAnyway."""
    min_domains: int | None = None
    node_affinity_policy: str = HONOR
    node_taints_policy: str = IGNORE
    match_label_keys: tuple[str, ...] = ()


SYSTEM_CONSTRAINTS: Final = (
    DefaultConstraint(3, "kubernetes.io/hostname", SCHEDULE_ANYWAY),
    DefaultConstraint(5, "topology.kubernetes.io/zone", SCHEDULE_ANYWAY),
)
"""The constraints of defaultingType System."""


class PodTopologySpreadArgs(msgspec.Struct, frozen=True):
    """Upstream's PodTopologySpreadArgs."""

    default_constraints: tuple[DefaultConstraint, ...] = SYSTEM_CONSTRAINTS
    is_system: bool = True
    """True for defaultingType System; the constraints are then `SYSTEM_CONSTRAINTS`."""

    @classmethod
    def from_config(cls, document: Mapping[str, Any], path: str = "args") -> PodTopologySpreadArgs:
        """Reads the arguments from a configuration. Raises PluginArgsError."""
        with Fields(document, path, ("defaultConstraints", "defaultingType")) as fields:
            kind = fields.choice("defaultingType", SYSTEM, (SYSTEM, LIST)) if fields.text("defaultingType") else SYSTEM
            constraints: list[DefaultConstraint] = []
            for entry in fields.entries("defaultConstraints", _CONSTRAINT_FIELDS):
                found = _read_constraint(entry)
                _refuse_repeated(found, constraints, entry)
                constraints.append(found)
            if kind == LIST:
                return cls(tuple(constraints), is_system=False)
            if constraints:
                text = "is System, which has its own constraints; write List, or remove defaultConstraints"
                fields.refuse("defaultingType", text)
            return cls()


def _read_constraint(fields: Fields) -> DefaultConstraint:
    for name in ("maxSkew", "topologyKey", "whenUnsatisfiable"):
        if not fields.has(name):
            fields.refuse(name, "is missing; it is required for each constraint")
    if fields.has("labelSelector"):
        fields.refuse("labelSelector", "is derived for each pod from its services and controller; remove it")
    key = fields.text("topologyKey")
    if not is_qualified_name(key):
        example = "topology.kubernetes.io/zone"
        fields.refuse("topologyKey", f"{key!r} is not a label key; write for example {example}")
    return DefaultConstraint(
        fields.integer("maxSkew", 1, 1, INT32_MAX),
        key,
        fields.choice("whenUnsatisfiable", "", (DO_NOT_SCHEDULE, SCHEDULE_ANYWAY)),
        fields.integer("minDomains", 1, 1, INT32_MAX) if fields.has("minDomains") else None,
        fields.choice("nodeAffinityPolicy", HONOR, (HONOR, IGNORE)),
        fields.choice("nodeTaintsPolicy", IGNORE, (HONOR, IGNORE)),
        tuple(text for _, text in fields.texts("matchLabelKeys")),
    )


def _refuse_repeated(found: DefaultConstraint, before: list[DefaultConstraint], fields: Fields) -> None:
    pair = (found.topology_key, found.when_unsatisfiable)
    if any((c.topology_key, c.when_unsatisfiable) == pair for c in before):
        fields.refuse_at(fields.path, f"{{{pair[0]}, {pair[1]}}} is listed twice; remove one")
