"""One program per baseline. Each runs in that baseline's own environment and needs nothing of distkv: the package is
started as `drivers`, from the folder that it lies in."""
