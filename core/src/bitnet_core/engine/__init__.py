"""The generation engine: scheduler, paged key/value cache, sampling and recovery."""
