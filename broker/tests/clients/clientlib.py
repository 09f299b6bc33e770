"""What the Python client programs share: arguments, the records they send, exact comparison, one bound on the whole run.

A program defines `basic(bootstrap, prefix)` and `group(bootstrap, prefix)` and ends with `main(globals())`. It passes when it
returns, and fails with the first difference it finds.
"""
import argparse
import faulthandler
import itertools
import os
import sys
import threading
import time
import traceback

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
# An hour ago: the past, so that it is told from the broker's clock, but not so far that retention deletes it.
BASE_MS = int(time.time() * 1000) - 3_600_000
PARTITIONS = 3
EACH = 60
RUN_LIMIT_S = 150


class Failed(Exception):
    pass


def check(ok, what):
    if not ok:
        raise Failed(what)


def expect(actual, expected, what):
    if actual != expected:
        if isinstance(actual, list) and isinstance(expected, list):
            what += f" ({len(actual)} for {len(expected)} items, first different: {first_different(actual, expected)!r:.600})"
        raise Failed(f"{what}: got {actual!r:.300}, expected {expected!r:.300}")


def first_different(actual, expected):
    for pair in itertools.zip_longest(actual, expected):
        if pair[0] != pair[1]:
            return pair


class Record:
    """What goes in and must come out: bytes or None for key and value, a list of (name, bytes or None) for headers."""

    __slots__ = ("partition", "key", "value", "headers", "timestamp_ms")

    def __init__(self, partition, key, value, headers, timestamp_ms):
        self.partition = partition
        self.key = key
        self.value = value
        self.headers = headers
        self.timestamp_ms = timestamp_ms

    def __eq__(self, other):
        return all(getattr(self, f) == getattr(other, f) for f in self.__slots__)

    def __repr__(self):
        return "Record(" + ", ".join(f"{f}={getattr(self, f)!r:.80}" for f in self.__slots__) + ")"


def records(codec, start=0, count=EACH, partitions=PARTITIONS, null_headers=True, tombstones=True):
    """`count` records over the partitions in turn: missing keys, tombstones, empty and repeated headers, all sizes."""
    out = []
    for i in range(start, start + count):
        key = None if i % 7 == 0 else b"key-%d" % i
        if tombstones and i % 11 == 0 and key is not None:
            value = None
        else:
            value = (f"value-{codec}-{i}-".encode() + bytes(range(256)) * (i % 4) + b"x" * i)
        headers = [] if i % 5 == 0 else [("h", b"first-%d" % i), ("h", b"second-%d" % i), ("empty", b"")]
        if null_headers and headers:
            headers.append(("null", None))
        out.append(Record(i % partitions, key, value, headers, BASE_MS + i))
    return out


class Expected:
    """The records of each partition by offset, in the order in which they were acknowledged."""

    def __init__(self, partitions=PARTITIONS):
        self.by_partition = {p: [] for p in range(partitions)}

    def acknowledged(self, record, offset):
        known = self.by_partition[record.partition]
        expect(offset, len(known), f"acknowledged offset in partition {record.partition}")
        known.append(record)

    def total(self):
        return sum(len(r) for r in self.by_partition.values())

    def end(self, partition):
        return len(self.by_partition[partition])

    def consumed(self, got):
        """`got`: {partition: [(offset, Record)]}, everything from the beginning."""
        for partition, known in self.by_partition.items():
            seen = got.get(partition, [])
            expect([o for o, _ in seen], list(range(len(known))), f"offsets of partition {partition}")
            for (offset, record), sent in zip(seen, known):
                check(record == sent, f"partition {partition} offset {offset}: got {record}, sent {sent}")

    def offset_for_time(self, partition, timestamp_ms):
        for offset, record in enumerate(self.by_partition[partition]):
            if record.timestamp_ms >= timestamp_ms:
                return offset
        return None


class Seen:
    """What a group's members got: each record once."""

    def __init__(self):
        self.seen = set()

    def add(self, partition, offset, who):
        check((partition, offset) not in self.seen, f"{who} got partition {partition} offset {offset} a second time")
        self.seen.add((partition, offset))

    def __len__(self):
        return len(self.seen)


def wait_for(condition, what, timeout_s=40, step=lambda: time.sleep(0.05)):
    """Calls `step` until `condition()` is true; fails with `what` (a function) after the time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        check(time.monotonic() < deadline, f"not within {timeout_s} s: {what()}")
        step()


def main(scenarios):
    parser = argparse.ArgumentParser()
    parser.add_argument("scenario")
    parser.add_argument("--bootstrap", required=True, help="HOST:PORT")
    parser.add_argument("--prefix", required=True, help="prefix of the topics and groups to use")
    arguments = parser.parse_args()
    scenario = scenarios.get(arguments.scenario)
    if not callable(scenario):
        sys.exit(f"no such scenario: {arguments.scenario}")
    # A library that hangs in its own threads can't be interrupted otherwise: every stack, then the end.
    faulthandler.dump_traceback_later(RUN_LIMIT_S, exit=True)
    started = time.monotonic()
    try:
        scenario(arguments.bootstrap, arguments.prefix)
    except Failed as e:
        # Where every thread is: a member that hangs is in one of its own.
        if threading.active_count() > 1:
            faulthandler.dump_traceback(all_threads=True)
        at = traceback.extract_tb(e.__traceback__)
        lines = [f"{f.filename.rsplit('/', 1)[-1]}:{f.lineno}" for f in at if not f.filename.endswith("clientlib.py")]
        end(1, f"FAILED {arguments.scenario} ({' < '.join(reversed(lines))}): {e}")
    except Exception:
        end(1, traceback.format_exc() + f"FAILED {arguments.scenario}")
    end(0, f"ok {arguments.scenario} in {time.monotonic() - started:.1f} s")


def whole_check(doc, run, more=lambda parser: None):
    """The arguments of a program that starts its own brokers: its one scenario is `check`. `run(arguments)` is what it does, and returns
    what is printed when it passes; `more(parser)` adds arguments."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", choices=["check"])
    parser.add_argument("--kaas", required=True)
    parser.add_argument("--kaas-engine", required=True)
    parser.add_argument("--bootstrap", help="ignored: every client program takes it")
    parser.add_argument("--prefix", help="ignored: every client program takes it")
    more(parser)
    try:
        said = run(parser.parse_args())
    except Failed as e:
        end(1, f"FAILED {os.path.basename(sys.argv[0])}: {e}")
    end(0, said)


def end(code, message):
    """Ends at once: what a failure left open (a consumer's threads) must not hold the result back."""
    print(message, file=sys.stdout if code == 0 else sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
