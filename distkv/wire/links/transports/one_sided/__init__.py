"""What transports share whose reads are done by a library: `pool` begins links, `link` reads by them."""
