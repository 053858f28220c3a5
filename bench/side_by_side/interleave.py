"""What bench/nbd and bench/burst share: the choice of candidates, and their runs in turns."""

import random
import sys

from . import place
from .servers import Weir


def choose(parser, text, all_of, name_of):
    """The entries that a comma list names, all without one."""
    if text is None:
        return list(all_of)
    names = [name_of(entry) for entry in all_of]
    wanted = [] if text == "none" else text.split(",")
    for name in wanted:
        if name not in names:
            parser.error(f"{name} is none of {', '.join(names)}")
    return [entry for entry in all_of if name_of(entry) in wanted]


def need_bytes(volume_bytes, kinds):
    """Disk that a run may take: every file in full, Weir's objects up to their limit, its journal."""
    files = len(kinds) * volume_bytes
    weirs = sum(issubclass(kind, Weir) for kind in kinds)
    return files + weirs * (Weir.STORE_BYTES_EXTRA_MAX + 3 * place.GIB)


def measure(servers, jobs, sizes, pairs):
    """All runs: in each pair, for each job, every candidate in a new random order."""
    runs = []
    order = random.Random()
    for pair in range(1, pairs + 1):
        for server in servers:
            if isinstance(server, Weir) and server.is_overgrown():
                server.renew()
        for job in jobs:
            shuffled = list(servers)
            order.shuffle(shuffled)
            for server in shuffled:
                load = place.load_average()[0]
                result = job.run(server, sizes)
                server.rest()
                runs.append({"pair": pair, "job": job.key, "server": server.name,
                             "load_average": load, **result})
        print(f"pair {pair} of {pairs} done, load average {place.load_average()[0]:.1f}",
              file=sys.stderr)
    return runs


def run(servers, jobs, sizes, pairs):
    """Starts and fills the candidates, measures them, and ends them: all runs."""
    for server in servers:
        print(f"filling {server.name}", file=sys.stderr)
        server.start()
        server.fill()
    runs = measure(servers, jobs, sizes, pairs)
    for server in servers:
        server.stop()
    return runs
