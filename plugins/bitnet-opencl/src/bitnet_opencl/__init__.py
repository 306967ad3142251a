"""bitnet on any device with an OpenCL 1.2 driver."""
