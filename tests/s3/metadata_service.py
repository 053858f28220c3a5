#!/usr/bin/python3
"""What a machine in a cloud asks for the credentials of its role, as AWS has it (version 2 of the protocol).

    metadata_service.py PORT COUNT_FILE

Hands out the keys of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY as ones that expire in a minute, so that a client
has to ask again, and writes to COUNT_FILE how often it did.
"""

import datetime
import http.server
import json
import os
import sys

ROLE = "/latest/meta-data/iam/security-credentials/"


class Handler(http.server.BaseHTTPRequestHandler):
    count = 0

    def log_message(self, *_):
        pass

    def answer(self, status, text):
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self):
        self.answer(200 if self.path == "/latest/api/token" else 404, "a-token")

    def do_GET(self):
        if self.headers.get("X-aws-ec2-metadata-token") != "a-token":
            self.answer(401, "")
        elif self.path == ROLE:
            self.answer(200, "tests")
        elif self.path == ROLE + "tests":
            Handler.count += 1
            with open(sys.argv[2], "w", encoding="ascii") as file:
                file.write(str(Handler.count))
            end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(minutes=1)
            self.answer(200, json.dumps({
                "Code": "Success", "Type": "AWS-HMAC", "Token": "",
                "LastUpdated": "2026-01-01T00:00:00Z", "Expiration": end.strftime("%Y-%m-%dT%H:%M:%SZ"),
                "AccessKeyId": os.environ["AWS_ACCESS_KEY_ID"],
                "SecretAccessKey": os.environ["AWS_SECRET_ACCESS_KEY"]}))
        else:
            self.answer(404, "")


http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
