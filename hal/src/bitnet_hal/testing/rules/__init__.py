"""The rules, one module per area; `bitnet_hal.testing.suite` puts them together."""
