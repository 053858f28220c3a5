//! The log volume of Weir: journal, batches, immutable objects, checkpoints, recovery.
