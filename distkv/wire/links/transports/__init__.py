"""What carries a tensor link, one module each; `registry` names them all."""
