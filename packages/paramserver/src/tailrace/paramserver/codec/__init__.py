"""Less to send: exact per-chunk codecs, lossy casts at publication, and the choice between them by measured speed."""
