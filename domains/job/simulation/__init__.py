"""What the job domain adds to `multisched simulate`: a day of jobs with deadlines, the workload `jobDay`."""
