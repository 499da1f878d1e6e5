"""A cluster under a manual clock whose messages arrive in an order that is drawn, for tests; `SimCluster` is the way
in."""
