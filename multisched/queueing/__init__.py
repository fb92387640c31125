"""Where pending pods of one domain wait: see `pod_queue.PodQueue`, the only door to this folder."""
