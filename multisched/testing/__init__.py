"""The public test kit: a seeded virtual-time loop, a transport with faults, the invariants, whole-program scenarios."""
