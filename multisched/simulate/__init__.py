"""`multisched simulate`: the real scheduler in virtual time on the embedded cluster, one policy and one seed at a time.

A scenario names a workload, policies and seeds. The workload of this folder is recorded services (`recorded_services`): their
replicas use what was recorded, and `judge` computes how evenly and how fully the nodes were loaded. Domains add policies and
workloads (`contribution`). `report` and `html_report` present the figures. May import every package except `app`, `cli` and the
domains. The scenario's seeds are the only source of randomness.
"""
