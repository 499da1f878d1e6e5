"""What `distkv bench moves` measures: two workers that decode while rBlocks of the one go to the other."""
