"""The HTTP server on its own: connections that are kept, and every way of asking too much of it."""

import asyncio
import json
import re

from sandbox.http_server import MAX_HEAD, HttpError, HttpServer, Response


async def echo(request):
    if request.path == "/fail":
        raise HttpError(429, "not now", retry_after=2.4)
    if request.path == "/slow":
        await asyncio.sleep(0.3)
    return Response(200, {"path": request.path, "length": len(request.body)})


def talk(*requests, server=None, pause=0.0):
    """All that the server says to these bytes on one connection, until it closes it or the client has."""

    async def run():
        listening = await (server or HttpServer(echo)).start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
        for request in requests:
            writer.write(request)
            await writer.drain()
            await asyncio.sleep(pause)
        writer.write_eof()
        said = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        listening.close()
        return said

    return asyncio.run(run())


def statuses(said):
    return [int(code) for code in re.findall(rb"HTTP/1\.1 (\d{3}) ", said)]


def post(path=b"/x", body=b"{}", head=b""):
    return b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n%s\r\n%s" % (path, len(body), head, body)


def test_one_connection_serves_many_requests_even_when_they_come_at_once():
    assert statuses(talk(post(), post(), post())) == [200, 200, 200]
    assert statuses(talk(post() + post() + post())) == [200, 200, 200]


def test_a_client_may_ask_for_the_end_of_the_connection():
    said = talk(post(head=b"Connection: close\r\n"), post())
    assert statuses(said) == [200]
    assert b"Connection: close" in said
    assert statuses(talk(b"GET / HTTP/1.0\r\n\r\n", b"GET / HTTP/1.0\r\n\r\n")) == [200]


def test_the_query_is_no_part_of_the_path():
    assert json.loads(talk(b"GET /a/b?c=d HTTP/1.1\r\n\r\n").partition(b"\r\n\r\n")[2])["path"] == "/a/b"


def test_an_error_carries_its_reason_and_when_to_come_again_and_keeps_the_connection():
    said = talk(post(b"/fail"), post())
    assert statuses(said) == [429, 200]
    assert b"Retry-After: 2\r\n" in said
    assert b'{"error":"not now"}' in said


def test_what_is_not_http_is_a_bad_request_and_the_end():
    for garbage in (
        b"\x16\x03\x01\r\n\r\n",
        b"GET / HTTP/2.0\r\n\r\n",
        b"GET http://x/ HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nA : b\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1_0\r\n\r\n",
    ):
        assert statuses(talk(garbage, post())) == [400], garbage
    assert statuses(talk(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", post())) == [411]


def test_a_head_or_a_body_that_is_too_long_is_refused_before_it_is_read():
    assert statuses(talk(b"GET / HTTP/1.1\r\nA: " + b"x" * MAX_HEAD + b"\r\n\r\n")) == [431]
    assert statuses(talk(post(body=b"x" * 10), server=HttpServer(echo, max_body=10))) == [200]
    unsent = b"POST / HTTP/1.1\r\nContent-Length: 11\r\n\r\n"
    assert statuses(talk(unsent, server=HttpServer(echo, max_body=10))) == [413]


def test_a_client_that_asks_before_it_sends_is_told_to_go_on():
    said = talk(post(head=b"Expect: 100-continue\r\n"))
    assert statuses(said) == [100, 200]


def test_a_request_that_dawdles_costs_its_connection():
    assert talk(b"GET / HT", pause=0.5, server=HttpServer(echo, read_s=0.2)) == b""
    assert talk(b"", pause=0.5, server=HttpServer(echo, idle_s=0.2)) == b""


def test_bodies_of_all_connections_together_are_bounded():
    async def run():
        server = HttpServer(echo, max_bodies=150)
        listening = await server.start("127.0.0.1", 0)
        address = listening.sockets[0].getsockname()

        async def ask():
            reader, writer = await asyncio.open_connection(*address)
            writer.write(post(b"/slow", b"x" * 100))
            status = int((await reader.readline()).split()[1])
            writer.close()
            return status

        together = sorted(await asyncio.gather(ask(), ask()))
        alone = await ask()
        listening.close()
        return together, alone

    assert asyncio.run(run()) == ([200, 503], 200)


def test_connections_beyond_the_limit_are_turned_away():
    async def run():
        server = HttpServer(echo, max_connections=1)
        listening = await server.start("127.0.0.1", 0)
        address = listening.sockets[0].getsockname()
        first = await asyncio.open_connection(*address)
        first[1].write(post())
        await first[0].readline()
        second = await asyncio.open_connection(*address)
        said = await second[0].read()
        for _, writer in (first, second):
            writer.close()
        listening.close()
        return said

    assert asyncio.run(run()).startswith(b"HTTP/1.1 503 ")
