"""Helpers for tests of plugins: virtual time, and builders of pods, nodes and plugin contexts.

- `multisched.testing.builders` builds pods, nodes, and the arguments of plugins.
- `multisched.testing.sim_loop.simulate` runs a coroutine on a `SimLoop`, an event loop in virtual time; `SimClock` is its clock.
- `multisched.testing.virtual_workers.VirtualWorkers` runs isolated plugins in that time; `VirtualThreads` runs background work.
- `multisched.testing.quiet_observer.QuietObserver` collects the failures of plugins.

The embedded API server (`multisched.cluster.api.server.ApiServer`) serves the cluster of such a test.
"""
