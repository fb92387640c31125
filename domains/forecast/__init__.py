"""The forecast domain: online services, placed by the peaks their history predicts."""
