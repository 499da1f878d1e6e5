"""What `distkv bench distattention` measures: one request's attention over several processes, in three ways."""
