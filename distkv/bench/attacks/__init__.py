"""What `distkv bench isolation` is made of: attacks on a gateway, and what others see of it meanwhile."""
