"""What is wrong on this machine, why, and how to mend it."""
