#!/usr/bin/python3
"""A small S3 client for the tests: path style, signature version 4, nothing but the standard library.

    client.py make BUCKET            create a bucket, if it is not there
    client.py list BUCKET [PREFIX]   keys, one per line
    client.py get BUCKET KEY         to standard output
    client.py put BUCKET KEY         from standard input
    client.py delete BUCKET KEY...

The service and the credentials come from AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION.
"""

import datetime
import hashlib
import hmac
import http.client
import os
import re
import sys
import urllib.parse
from xml.sax.saxutils import unescape

UNSIGNED = "UNSIGNED-PAYLOAD"


class Refused(Exception):
    def __init__(self, status, body):
        super().__init__(f"{status}: {body[:300].decode(errors='replace')}")
        self.status = status


def quoted(text):
    return urllib.parse.quote(text, safe="-_.~")


def signed(method, path, query="", digest=UNSIGNED):
    """Headers of a request whose path and query are quoted; `digest` is the body's SHA-256 in hexadecimal."""
    endpoint = urllib.parse.urlsplit(os.environ["AWS_ENDPOINT_URL"])
    region = os.environ.get("AWS_REGION", "us-east-1")
    now = datetime.datetime.now(datetime.timezone.utc)
    stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    headers = {"host": endpoint.netloc, "x-amz-content-sha256": digest, "x-amz-date": stamp}
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    canonical = "\n".join([method, path, query, lines, names, digest])
    scope = f"{day}/{region}/s3/aws4_request"
    hashed = hashlib.sha256(canonical.encode()).hexdigest()
    to_sign = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashed])
    key = ("AWS4" + os.environ["AWS_SECRET_ACCESS_KEY"]).encode()
    for part in (day, region, "s3", "aws4_request", to_sign):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={os.environ['AWS_ACCESS_KEY_ID']}/{scope}, "
        f"SignedHeaders={names}, Signature={key.hex()}")
    return headers


def connect():
    endpoint = urllib.parse.urlsplit(os.environ["AWS_ENDPOINT_URL"])
    return http.client.HTTPConnection(endpoint.hostname, endpoint.port or 80, timeout=30)


def request(method, path, query=None, body=b""):
    path = "/" + "/".join(quoted(part) for part in path.split("/"))
    query = "&".join(f"{quoted(k)}={quoted(v)}" for k, v in sorted((query or {}).items()))
    headers = signed(method, path, query, hashlib.sha256(body).hexdigest())
    connection = connect()
    try:
        connection.request(method, path + ("?" + query if query else ""), body, headers)
        reply = connection.getresponse()
        content = reply.read()
    finally:
        connection.close()
    if reply.status >= 300:
        raise Refused(reply.status, content)
    return content


def make(bucket):
    try:
        request("PUT", bucket)
    except Refused as error:
        if error.status != 409:
            raise


def keys(bucket, prefix=""):
    query = {"list-type": "2", "prefix": prefix}
    while True:
        page = request("GET", bucket, query).decode()
        yield from (unescape(key) for key in re.findall(r"<Key>([^<]*)</Key>", page))
        token = re.search(r"<NextContinuationToken>([^<]*)<", page)
        if token is None:
            return
        query["continuation-token"] = unescape(token.group(1))


def main(arguments):
    verb, bucket, *rest = arguments
    if verb == "make":
        make(bucket)
    elif verb == "list":
        print("\n".join(keys(bucket, *rest)))
    elif verb == "get":
        sys.stdout.buffer.write(request("GET", f"{bucket}/{rest[0]}"))
    elif verb == "put":
        request("PUT", f"{bucket}/{rest[0]}", body=sys.stdin.buffer.read())
    elif verb == "delete":
        for key in rest:
            request("DELETE", f"{bucket}/{key}")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
