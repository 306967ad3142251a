"""One model on several devices, each with an engine in a process of its own, behind one queue."""
