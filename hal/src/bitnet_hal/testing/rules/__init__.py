"""The rules by subject; `bitnet_hal.testing.suite` combines them."""
