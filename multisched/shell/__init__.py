"""The asynchronous drivers of the synchronous core: domain loops, bind workers, ingest and timers.

All I/O and clocks are ports (`framework.ports`, `model.wire`), so this code runs unchanged in virtual time.
"""
