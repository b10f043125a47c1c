"""Connections: addresses, authentication, messages and the exchange that moves a version."""
