"""The queue of one domain's pending pods: see `pod_queue.PodQueue`, the only entry point of this folder."""
