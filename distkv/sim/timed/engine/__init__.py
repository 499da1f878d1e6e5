"""An engine worker that computes nothing and takes the time for it that a profile says."""
