"""ReRoPE and its kin: near and far keys rotated differently, in one softmax."""
