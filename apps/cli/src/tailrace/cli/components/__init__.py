"""Commands about single components: judges, rankers, sandboxes, the stream service, plugins."""
