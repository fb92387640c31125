"""The vocabulary and the plugin contract: status codes, one Protocol per extension point, events, registry, runner, ports."""
