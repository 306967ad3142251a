"""Running a scheduled batch on a device."""
