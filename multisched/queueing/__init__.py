"""Where pending pods of one domain wait: see `pod_queue.PodQueue`, the only way into this folder."""
