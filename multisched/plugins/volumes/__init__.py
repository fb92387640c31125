"""The plugins about volumes and claims."""
