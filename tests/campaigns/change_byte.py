#!/usr/bin/python3
"""Flips one bit of an NBD export: change_byte.py URI OFFSET. What a control does to be found out."""

import sys

import nbd

handle = nbd.NBD()
handle.connect_uri(sys.argv[1])
offset = int(sys.argv[2])
handle.pwrite(bytes([handle.pread(1, offset)[0] ^ 1]), offset)
handle.flush()
handle.shutdown()
