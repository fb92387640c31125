"""`multisched simulate`: the real scheduler over days of recorded use, in virtual time on the embedded cluster.

A scenario (`scenario_file`) names nodes, services, their use (`usage_table`), what happens when, and policies
(`policies`). `course` drives the program through it, one policy and one seed at a time. `judge` says how even and how
full the nodes were. `report` and `page` show it. Sees everything but `app` and `cli`; draws nothing but from the seeds
of the scenario.
"""
