"""Helpers for a plugin that calls a vendor's driver: status codes, enumeration, program cache, staging."""
