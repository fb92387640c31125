"""The plugin contract and its vocabulary: status codes, one Protocol per extension point, events, registry, runner, ports."""
