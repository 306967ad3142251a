"""The numpy device: the executable meaning of every catalogue kernel, and the device that is always there."""
