"""The figures of a run while it goes on and when it has ended: folds over its log, its status, metrics and summary."""
