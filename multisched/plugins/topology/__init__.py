"""PodTopologySpread and InterPodAffinity, and the counts per topology domain below them."""
