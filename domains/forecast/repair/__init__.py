"""Repair: planning of moves, and the state machine that carries out a plan."""
