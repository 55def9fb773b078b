"""Sends requests on one connection of http.client and compares every body with the object on disk.

    keep_alive.py BASE CA OBJECTS REQUESTS NAME...

Prints the number of requests. CA is `-` for plain connections.
"""

import http.client
import pathlib
import ssl
import sys
import urllib.parse


def main() -> None:
    base, authority, objects, requests, *names = sys.argv[1:]
    url = urllib.parse.urlsplit(base)
    if url.scheme == "https":
        context = ssl.create_default_context(cafile=authority)
        connection = http.client.HTTPSConnection(url.netloc, timeout=30, context=context)
    else:
        connection = http.client.HTTPConnection(url.netloc, timeout=30)
    connection.connect()
    # An automatic reconnect would hide a lost connection.
    connection.auto_open = 0
    for number in range(int(requests)):
        name = names[number % len(names)]
        content = (pathlib.Path(objects) / name).read_bytes()
        method = "HEAD" if number % 7 == 3 else "GET"
        connection.request(method, f"/{name}")
        response = connection.getresponse()
        body = response.read()
        wanted = b"" if method == "HEAD" else content
        if response.status != 200 or body != wanted:
            sys.exit(f"request {number}, {method} /{name}: {response.status}, {len(body)} bytes")
        if int(response.headers["Content-Length"]) != len(content):
            sys.exit(f"request {number}, {method} /{name}: {response.headers}")
    connection.close()
    print(requests)


if __name__ == "__main__":
    main()
