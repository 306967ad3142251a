"""What devices there are: plugins found, requests, choice, imitations, and what is wrong with them."""
