"""Which GPU and which slots a partition gets, and which partitions are moved for it."""
