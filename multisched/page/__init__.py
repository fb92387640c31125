"""The web page of a running multisched: its files, which `observe` serves. They contain nothing of a cluster."""
