"""Many rManagers and a gManager in one process: one network, one clock turned by hand, workers that only pretend."""
