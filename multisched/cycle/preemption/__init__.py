"""Preemption as decided in a cycle: dry runs, cached victims, nominations, PostFilter."""
