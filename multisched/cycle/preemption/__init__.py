"""Preemption as decided in a cycle: dry runs, their memory, nominations, PostFilter."""
