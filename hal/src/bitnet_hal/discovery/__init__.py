"""Discovery of devices: installed plugins, device requests, selection, fakes, and the validation of plugins."""
