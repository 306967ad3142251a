"""Metal backend of bitnet, for Apple GPUs."""
