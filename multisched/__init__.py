"""multisched: one deployment, several Kubernetes schedulers, one shared assume cache."""

__version__ = "0.1.0"
