"""What a cache knows of the version it has reached."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from multisched.cluster.client.object_cache import ObjectCache
from multisched.cluster.client.object_client import PODS, version_of
from tests.unit.cluster.cluster_kit import Cluster, a_pod

pytestmark = pytest.mark.looptime


async def test_cache_reaches_the_version_of_an_object_deleted_before_a_relist() -> None:
    cluster = Cluster(1)
    cache = ObjectCache(cluster.client, PODS, rng=Random(1))
    task = asyncio.create_task(cache.watch.run())
    await cache.watch.synced.wait()
    await asyncio.sleep(1)

    cluster.server.drop_watches()
    created = await cluster.create(PODS, a_pod("brief"))
    await cluster.delete(PODS, "brief", grace_s=0)
    cluster.server.compact()
    await asyncio.sleep(10)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert cache.watch.statistics.relists == 2
    assert cache.version >= version_of(created)
