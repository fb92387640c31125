"""The part of preemption that a cycle decides: dry runs, cached victims, nominations, PostFilter."""
