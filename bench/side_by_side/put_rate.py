#!/usr/bin/env python3
"""How fast an S3 service takes objects: PUTs of one size, some of them in flight, for some seconds. Prints JSON.

    put_rate.py BUCKET PREFIX BYTES IN_FLIGHT SECONDS

A process of its own, so that its CPU time can be told: the body is made once and sent unsigned.
"""

import json
import os
import sys
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/s3"))

import client  # noqa: E402  pylint: disable=wrong-import-position,import-error


def put_until(end, prefix, body, counts):
    """PUTs one object after the other; `counts` gets what was answered in time."""
    connection, number = client.connect(), 0
    while True:
        path = f"/{prefix}/{threading.get_ident()}-{number}"
        connection.request("PUT", path, body, client.signed("PUT", path))
        reply = connection.getresponse()
        answer = reply.read()
        if reply.status != 200:
            raise client.Refused(reply.status, answer)
        if time.monotonic() > end:
            break
        number += 1
    counts.append(number)
    connection.close()


def main():
    bucket, prefix, size, in_flight, seconds = sys.argv[1:]
    body, counts = os.urandom(int(size)), []
    end = time.monotonic() + float(seconds)
    threads = [threading.Thread(target=put_until, args=(end, f"{bucket}/{prefix}", body, counts))
               for _ in range(int(in_flight))]
    cpu = time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(counts) != len(threads):
        sys.exit(1)
    print(json.dumps({"bytes_per_second": sum(counts) * len(body) / float(seconds),
                      "client_cpu_percent": (time.process_time() - cpu) * 100 / float(seconds)}))


if __name__ == "__main__":
    main()
