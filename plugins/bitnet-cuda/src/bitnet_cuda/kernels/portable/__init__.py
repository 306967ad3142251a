"""Sources that bitnet-rocm compiles too, and their tilings."""
