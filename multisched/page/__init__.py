"""The web page of a running multisched: its files, which `observe` serves. They contain no data of a cluster."""
