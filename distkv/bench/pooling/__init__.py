"""What `distkv bench cluster` compares: the contenders, the rates they are played, and what is stated of them."""
