"""The job domain: cron and batch bursts, placed in batches on virtual nodes and on nodes lent to it."""
