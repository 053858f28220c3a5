//! Local files of Weir: io_uring, a thread-pool engine, O_DIRECT, and a simulated disk.
