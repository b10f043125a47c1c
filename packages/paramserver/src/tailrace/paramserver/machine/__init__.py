"""The machine under the protocol: clock, threads, connections and shared memory."""
