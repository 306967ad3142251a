"""Model shape, weights, and the plan that turns layers into launches."""
