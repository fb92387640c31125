"""Runs the controllers of the embedded cluster as one coroutine.

Owns the caches and control loops of one run, and ends all of them when it is cancelled. Called by `multisched.embedded_app` and by tests.
"""

from __future__ import annotations

import asyncio
import random

from multisched.cluster.client.object_client import ObjectClient, WallClock
from multisched.cluster.controllers.context import Controller, ControllerContext
from multisched.cluster.controllers.cronjob import CronJobController
from multisched.cluster.controllers.daemonset import DaemonSetController
from multisched.cluster.controllers.deployment import DeploymentController
from multisched.cluster.controllers.disruption import DisruptionController
from multisched.cluster.controllers.ephemeral_volume import EphemeralVolumeController
from multisched.cluster.controllers.fake_provisioner import FakeProvisioner
from multisched.cluster.controllers.garbage import GarbageController
from multisched.cluster.controllers.job import JobController
from multisched.cluster.controllers.namespace import NamespaceController
from multisched.cluster.controllers.node_lifecycle import NodeLifecycleController
from multisched.cluster.controllers.persistentvolume import ClaimController, VolumeController
from multisched.cluster.controllers.replicaset import ReplicaSetController
from multisched.cluster.controllers.statefulset import StatefulSetController
from multisched.cluster.controllers.storage_protection import claim_protection, volume_protection
from multisched.model.wire import Transport


async def run_controllers(transport: Transport, *, clock: WallClock, rng: random.Random) -> None:
    """Runs until cancelled. Starts all watches at once, and the controllers when all first lists have been read."""
    context = ControllerContext(ObjectClient(transport), clock=clock, rng=rng)
    controllers: list[Controller] = [
        ReplicaSetController(context),
        DeploymentController(context),
        StatefulSetController(context),
        DaemonSetController(context),
        JobController(context),
        CronJobController(context),
        DisruptionController(context),
        EphemeralVolumeController(context),
        ClaimController(context),
        VolumeController(context),
        claim_protection(context),
        volume_protection(context),
        FakeProvisioner(context),
        NodeLifecycleController(context),
        NamespaceController(context),
        GarbageController(context),
    ]
    async with asyncio.TaskGroup() as group:
        for cache in context.caches():
            group.create_task(cache.watch.run(), name=f"watch {cache.resource.plural}")
        for cache in context.caches():
            await cache.watch.synced.wait()
        group.create_task(context.events.run(), name="events")
        for controller in controllers:
            group.create_task(controller.run(), name=controller.queue.name)
