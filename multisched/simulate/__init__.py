"""`multisched simulate`: the real scheduler over days of recorded use, in virtual time on the embedded cluster.

A scenario (`scenario_file`) names nodes, services, their use (`usage_table`), timed events, and policies (`policies`).
`recorded_run` runs the program through it, one policy and one seed at a time. `judge` computes how evenly and how fully the nodes
were loaded. `report` and `html_report` present the figures. May import everything except `app` and `cli`. The scenario's seeds are the
only source of randomness.
"""
