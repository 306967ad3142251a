"""The rules, one module per area; `bitnet_core.testing.suite` puts them together."""
