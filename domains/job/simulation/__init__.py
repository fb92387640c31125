"""The job domain's contribution to `multisched simulate`: the workload `jobDay`, a day of jobs with deadlines."""
