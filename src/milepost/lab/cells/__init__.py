"""One model of a sweep: what defines it, how it is worked, where its numbers are kept, and whose turn it is."""
