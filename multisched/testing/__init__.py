"""The public test kit: the whole scheduler in virtual time, under faults that are drawn from a seed, and its invariants.

For authors of plugins, beside the embedded cluster (`multisched.cluster.api.server.ApiServer`):

- `multisched.testing.loop.sim_loop.simulate` runs a coroutine on a `SimLoop`; `SimClock` is its clock for the program.
- `multisched.testing.loop.virtual_workers.VirtualWorkers` runs isolated plugins in that time, `VirtualThreads` background work.
- `multisched.testing.wire.faulty_transport.FaultyTransport` goes wrong as `multisched.testing.wire.faults.Faults` says.
- `multisched.testing.checkers.api.api_checker.ApiChecker` looks at each binding as it takes effect.
- `multisched.testing.checkers.invariants.differences` compares a program at rest with its API server.
- `multisched.testing.processes.quiet_observer.QuietObserver` collects what plugins fail with.
- `multisched.testing.run.seeded_run.run_seed` is one whole run; it reports which invariants were broken.
"""
