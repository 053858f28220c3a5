"""A minimal NBD client on a unix socket: one request at a time, simple replies."""

import socket
import struct

_MAGIC = 0x4E42444D41474943
_OPTION_MAGIC = 0x49484156454F5054
_OPTION_REPLY_MAGIC = 0x3E889045565A9
_OPTION_GO = 7
_REPLY_ACK = 1
_REPLY_ERROR_BIT = 1 << 31
_REQUEST_MAGIC = 0x25609513
_REPLY_MAGIC = 0x67446698
_READ, _WRITE, _DISCONNECT = 0, 1, 2


class NbdError(Exception):
    """The server refused something, or does not speak the protocol."""


class Client:
    """Connects to an export, the default one where none is named. Raises OSError while nobody listens."""

    def __init__(self, path, seconds=120, export=""):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(seconds)
        self.socket.connect(path)
        magic, option_magic, _flags = struct.unpack(">QQH", self._take(18))
        if (magic, option_magic) != (_MAGIC, _OPTION_MAGIC):
            raise NbdError("not a newstyle server")
        self.socket.sendall(struct.pack(">I", 1))
        name = export.encode()
        data = struct.pack(">I", len(name)) + name + struct.pack(">H", 0)
        self.socket.sendall(struct.pack(">QII", _OPTION_MAGIC, _OPTION_GO, len(data)) + data)
        while True:
            head = struct.unpack(">QIII", self._take(20))
            body = self._take(head[3])
            if head[0] != _OPTION_REPLY_MAGIC or head[2] & _REPLY_ERROR_BIT:
                raise NbdError(f"the export is refused: {body.decode(errors='replace')}")
            if head[2] == _REPLY_ACK:
                break
        self.cookie = 0

    def _take(self, length):
        parts = []
        while length:
            part = self.socket.recv(length)
            if not part:
                raise ConnectionError("the server went away")
            parts.append(part)
            length -= len(part)
        return b"".join(parts)

    def _request(self, command, offset, length, payload=b""):
        self.cookie += 1
        head = struct.pack(">IHHQQI", _REQUEST_MAGIC, 0, command, self.cookie, offset, length)
        self.socket.sendall(head + payload)

    def _reply(self):
        magic, error, cookie = struct.unpack(">IIQ", self._take(16))
        if magic != _REPLY_MAGIC or cookie != self.cookie:
            raise NbdError("a reply that answers nothing")
        if error:
            raise NbdError(f"error {error}")

    def read(self, offset, length):
        self._request(_READ, offset, length)
        self._reply()
        return self._take(length)

    def write(self, offset, data):
        self._request(_WRITE, offset, len(data), data)
        self._reply()

    def close(self):
        try:
            self._request(_DISCONNECT, 0, 0)
        except OSError:
            pass
        self.socket.close()
