"""One program per peer. Each runs in that peer's own environment and needs nothing of distkv: the package is started as
`drivers`, from the folder that it lies in."""
