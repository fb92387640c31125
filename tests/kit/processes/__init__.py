"""The program's processes in a simulation: how they start and end, and what users ask of them."""
