"""Two ends of a veth pair, one of them in a network namespace of its own: packets take the kernel's way between two
hosts, and not that of the loopback interface."""

import subprocess

from .place import Refused

NAMESPACE = "weir-bench-far"
NEAR_INTERFACE = "weir-near"
FAR_INTERFACE = "weir-far"
NEAR_ADDRESS = "10.213.77.1"
FAR_ADDRESS = "10.213.77.2"


class Veth:
    """There within a `with`."""

    address = FAR_ADDRESS
    # What a command at the far end begins with. It runs in place of `ip`, as the same process.
    prefix = ("ip", "netns", "exec", NAMESPACE)

    def __enter__(self):
        # What a run before left behind.
        self.remove()
        for words in (
                ["netns", "add", NAMESPACE],
                ["link", "add", NEAR_INTERFACE, "type", "veth", "peer", "name", FAR_INTERFACE, "netns", NAMESPACE],
                ["addr", "add", f"{NEAR_ADDRESS}/30", "dev", NEAR_INTERFACE],
                ["link", "set", NEAR_INTERFACE, "up"],
                ["-n", NAMESPACE, "addr", "add", f"{FAR_ADDRESS}/30", "dev", FAR_INTERFACE],
                ["-n", NAMESPACE, "link", "set", FAR_INTERFACE, "up"],
                ["-n", NAMESPACE, "link", "set", "lo", "up"]):
            done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise Refused(f"ip {' '.join(words)}: {done.stderr.strip()}")
        return self

    def __exit__(self, *_):
        self.remove()

    def remove(self):
        """Takes the pair away, with its namespace."""
        subprocess.run(["ip", "netns", "del", NAMESPACE], stderr=subprocess.DEVNULL, check=False)
