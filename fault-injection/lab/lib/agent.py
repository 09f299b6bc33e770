#!/usr/bin/env python3
"""Runs commands in a guest for callers on the host.

`agent.py serve PORT` is the guest's end; `agent.py run ADDRESS PORT [-t SECONDS] -- COMMAND...` the host's. One connection a
command, of frames: a byte for the kind, four for the length (big-endian), the payload. Kinds: J the request (JSON), I input,
E the end of input; o output, e error output, X the exit code. When the caller goes away, its command is killed.
"""
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

PIECE_BYTES = 65536
EXIT_TIME_LIMIT, EXIT_CANNOT_RUN, EXIT_CONNECTION_LOST = 124, 127, 255


def send(connection, kind, payload=b"", lock=threading.Lock()):
    with lock:
        connection.sendall(kind + struct.pack(">I", len(payload)) + payload)


def receive_exactly(connection, count):
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def receive(connection):
    head = receive_exactly(connection, 5)
    return head[:1], receive_exactly(connection, struct.unpack(">I", head[1:])[0])


def handle(connection):
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    lock = threading.Lock()
    try:
        _, request = receive(connection)
    except (EOFError, OSError):
        connection.close()
        return
    try:
        process = subprocess.Popen(
            json.loads(request)["command"], cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, start_new_session=True,
        )
    except OSError as error:
        send(connection, b"e", f"agent: {error}\n".encode(), lock)
        send(connection, b"X", str(EXIT_CANNOT_RUN).encode(), lock)
        connection.close()
        return

    def forward(pipe, kind):
        try:
            while piece := os.read(pipe.fileno(), PIECE_BYTES):
                send(connection, kind, piece, lock)
        except OSError:
            pass

    def feed():
        try:
            while True:
                kind, payload = receive(connection)
                if kind == b"I":
                    process.stdin.write(payload)
                    process.stdin.flush()
                elif kind == b"E":
                    process.stdin.close()
        except (EOFError, OSError, ValueError):
            if process.poll() is None:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except OSError:
                    pass

    outputs = [
        threading.Thread(target=forward, args=(pipe, kind), daemon=True)
        for pipe, kind in ((process.stdout, b"o"), (process.stderr, b"e"))
    ]
    for thread in outputs:
        thread.start()
    threading.Thread(target=feed, daemon=True).start()
    code = process.wait()
    for thread in outputs:
        thread.join(2)  # a child in the background may hold the pipe open: do not wait for it for ever
    try:
        send(connection, b"X", str(code if code >= 0 else 128 - code).encode(), lock)
        connection.close()
    except OSError:
        pass


def serve(port):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("", port))
    listener.listen(64)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=handle, args=(connection,), daemon=True).start()


def run(address, port, command, limit_seconds):
    connection = socket.create_connection((address, port), timeout=5)
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    send(connection, b"J", json.dumps({"command": command}).encode())
    deadline = time.monotonic() + limit_seconds if limit_seconds else None
    stdin = sys.stdin.fileno()
    sources = [connection, stdin]
    while True:
        left = max(0, deadline - time.monotonic()) if deadline else None
        ready, _, _ = select.select(sources, [], [], left)
        if not ready:
            print(f"agent: not done in {limit_seconds} s: {' '.join(command)}", file=sys.stderr)
            return EXIT_TIME_LIMIT
        if stdin in ready:
            piece = os.read(stdin, PIECE_BYTES)
            send(connection, b"I" if piece else b"E", piece)
            if not piece:
                sources.remove(stdin)
        if connection in ready:
            try:
                kind, payload = receive(connection)
            except (EOFError, OSError):
                print("agent: the connection to the guest is lost", file=sys.stderr)
                return EXIT_CONNECTION_LOST
            if kind == b"X":
                return int(payload)
            stream = sys.stdout if kind == b"o" else sys.stderr
            stream.buffer.write(payload)
            stream.buffer.flush()


def main(arguments):
    if arguments[:1] == ["serve"]:
        serve(int(arguments[1]))
    address, port, rest = arguments[1], int(arguments[2]), arguments[3:]
    limit_seconds = 0.0
    if rest[:1] == ["-t"]:
        limit_seconds, rest = float(rest[1]), rest[2:]
    return run(address, port, rest[1:] if rest[:1] == ["--"] else rest, limit_seconds)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (OSError, BrokenPipeError) as error:
        print(f"agent: {error}", file=sys.stderr)
        sys.exit(EXIT_CONNECTION_LOST)
