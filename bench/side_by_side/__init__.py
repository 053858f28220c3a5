"""What the benchmark commands share: places, processes, servers, fio, statistics, tables."""
