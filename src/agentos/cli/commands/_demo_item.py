"""What `agentos demo` runs for each item: one request with the key in DEMO_API_KEY, as any tool would make it.

It is started as a program of its own, knows nothing of the package, and tells what went wrong as programs do: it prints
what the provider has answered, and ends with status 1.
"""

from __future__ import annotations

import http.client
import json
import os
import sys

# Nobody can review these.
EMPTY = ("document-13", "document-31")


def main(host: str, document: str) -> int:
    connection = http.client.HTTPConnection(host, timeout=30)
    headers = {"Authorization": f"Bearer {os.environ['DEMO_API_KEY']}", "Content-Type": "application/json"}
    connection.request("POST", "/v1/work", json.dumps({"document": document}), headers)
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
