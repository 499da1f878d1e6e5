"""What `distkv bench engine` is made of: checkpoints, cases, contenders and goals; `drivers` run baselines."""
