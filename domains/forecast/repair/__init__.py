"""Repair: the plan of moves, and the state machine that carries it out."""
