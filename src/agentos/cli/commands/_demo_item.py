"""The command that `agentos demo` runs for each item: one request with the key, or the client token, in DEMO_API_KEY.

A program of its own that imports nothing of this package. It reports an error as any tool does: it prints the answer of
the provider, and exits with status 1.
"""

from __future__ import annotations

import http.client
import json
import os
import sys

# Documents that fail.
EMPTY = ("document-13", "document-31")
# In place of a host: the gateway of the run, which has the provider below /demo.
GATEWAY = "gateway"


def main(host: str, document: str) -> int:
    path = "/v1/work"
    if host == GATEWAY:
        host, path = os.environ["AGENTOS_GATEWAY_URL"].removeprefix("http://"), f"/demo{path}"
    connection = http.client.HTTPConnection(host, timeout=120)
    headers = {"Authorization": f"Bearer {os.environ['DEMO_API_KEY']}", "Content-Type": "application/json"}
    connection.request("POST", path, json.dumps({"document": document}), headers)
    answer = connection.getresponse()
    body = answer.read().decode()
    if answer.status != 200:
        print(f"HTTP {answer.status}: {body}", file=sys.stderr)
        return 1
    if document in EMPTY:
        print(f"{document} is empty: there is nothing to review", file=sys.stderr)
        return 1
    print(f"{document} reviewed")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
