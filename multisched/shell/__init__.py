"""The asynchronous drivers: domain loops, bind workers, ingest, timers. The only waiting done around the synchronous core.

Everything outside comes in through `framework.ports` and `model.wire`, so all of this runs unchanged under a virtual clock.
"""
