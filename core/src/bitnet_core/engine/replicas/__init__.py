"""One model on several devices, each with an engine and a thread of its own, behind one queue."""
