"""Runs the small controllers of the embedded cluster as one coroutine.

Owns the caches and control loops of one run. Promises to end, with everything it started, when it is cancelled. Called by
the embedded cluster, the simulation and tests.
"""

from __future__ import annotations

import asyncio
import random

from multisched.cluster.controller_context import Controller, ControllerContext
from multisched.cluster.controller_cronjob import CronJobController
from multisched.cluster.controller_daemonset import DaemonSetController
from multisched.cluster.controller_deployment import DeploymentController
from multisched.cluster.controller_disruption import DisruptionController
from multisched.cluster.controller_ephemeral_volume import EphemeralVolumeController
from multisched.cluster.controller_garbage import GarbageController
from multisched.cluster.controller_job import JobController
from multisched.cluster.controller_namespace import NamespaceController
from multisched.cluster.controller_persistentvolume import ClaimController, VolumeController
from multisched.cluster.controller_replicaset import ReplicaSetController
from multisched.cluster.controller_statefulset import StatefulSetController
from multisched.cluster.controller_storage_protection import claim_protection, volume_protection
from multisched.cluster.fake_provisioner import FakeProvisioner
from multisched.cluster.object_client import ObjectClient, WallClock
from multisched.model.wire import Transport


async def run_controllers(transport: Transport, *, clock: WallClock, rng: random.Random) -> None:
    """Works until cancelled. Every watch starts at once; controllers start when all first lists have been read."""
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
