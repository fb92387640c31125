"""Reasons of PodScheduled that plugins of the domain share."""

from __future__ import annotations

from typing import Final

WAITING_FOR_UNIT: Final = "WaitingForUnit"
"""The pod waits on purpose, although a node has room for it. Cluster autoscalers add nodes for the reason Unschedulable only."""
