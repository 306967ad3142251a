"""The options of sampling, the engine and loading, each stated once: type, default, range, help and names."""
