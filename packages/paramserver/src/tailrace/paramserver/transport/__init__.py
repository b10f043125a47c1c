"""Bulk bytes between processes: shared memory, TCP, UCX and NIXL behind one protocol, and others by entry point."""
