"""kcat: basic and group round trip. The admin calls that kcat lacks are made with confluent-kafka."""
import json
import os
import select
import signal
import subprocess
import time

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient, NewTopic

from clientlib import CODECS, PARTITIONS, Seen, check, expect, main, wait_for

TIMEOUT_S = 30


def kcat(bootstrap, *arguments, stdin=None):
    done = subprocess.run(["kcat", "-b", bootstrap, *arguments], input=stdin, capture_output=True, timeout=TIMEOUT_S)
    check(done.returncode == 0, f"kcat {' '.join(arguments)} ended with {done.returncode}: {done.stderr.decode(errors='replace')[-500:]}")
    return done.stdout.decode()


def create(admin, topic, partitions):
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(TIMEOUT_S)
    # Apache Kafka answers before its brokers' metadata has the topic.
    wait_for(lambda: topic in admin.list_topics(timeout=TIMEOUT_S).topics, lambda: f"{topic} is not in the metadata")


def consume(bootstrap, topic, *more):
    out = kcat(bootstrap, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-J", "-X", "fetch.wait.max.ms=100", *more)
    return [json.loads(line) for line in out.splitlines()]


def basic(bootstrap, prefix):
    topic = f"{prefix}-kcat-basic"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    create(admin, topic, PARTITIONS)
    sent = {p: [] for p in range(PARTITIONS)}
    before_ms = int(time.time() * 1000)
    for n, codec in enumerate(CODECS):
        for p in sent:
            lines = [(f"key-{codec}-{p}-{i}", f"value-{codec}-{p}-{i}-" + "x" * (7 * i)) for i in range(40)]
            kcat(bootstrap, "-P", "-t", topic, "-p", str(p), "-K", "\t", "-z", codec, "-H", f"codec={codec}", "-H", "empty=",
                 "-X", "acks=all", "-X", f"enable.idempotence={'true' if n % 2 else 'false'}",
                 stdin="".join(f"{k}\t{v}\n" for k, v in lines).encode())
            sent[p] += [(k, v, ["codec", codec, "empty", ""]) for k, v in lines]
        if n == 1:
            middle_ms = int(time.time() * 1000) + 1
            middle = {p: len(r) for p, r in sent.items()}
            time.sleep(0.01)
    after_ms = int(time.time() * 1000)
    for p, records in sent.items():
        got = consume(bootstrap, topic, "-p", str(p))
        expect([m["offset"] for m in got], list(range(len(records))), f"offsets of partition {p}")
        for m, (key, value, headers) in zip(got, records):
            expect((m["topic"], m["partition"], m["key"], m["payload"], m["headers"]), (topic, p, key, value, headers),
                   f"partition {p} offset {m['offset']}")
            check(m["tstype"] == "create" and before_ms <= m["ts"] <= after_ms, f"timestamp {m['tstype']} {m['ts']}")
    expect(len(consume(bootstrap, topic)), sum(len(r) for r in sent.values()), "records of all partitions at once")
    # Offsets: from the end, by time, by query.
    tail = consume(bootstrap, topic, "-p", "0", "-o", "-5")
    expect([m["offset"] for m in tail], list(range(195, 200)), "offsets of -o -5")
    timed = consume(bootstrap, topic, "-p", "1", "-o", f"s@{middle_ms}")
    expect(timed[0]["offset"], middle[1], "first offset of -o s@TIME")
    answers = kcat(bootstrap, "-Q", *[a for p in sent for a in ("-t", f"{topic}:{p}:{middle_ms}")])
    for p in sent:
        check(f"{topic} [{p}] offset {middle[p]}\n" in answers, f"kcat -Q for partition {p}: {answers!r}")
    metadata = json.loads(kcat(bootstrap, "-L", "-J", "-t", topic))
    expect(len(metadata["topics"][0]["partitions"]), PARTITIONS, "partitions of kcat -L")
    check(metadata["topics"][0]["partitions"][0]["leader"] == metadata["brokers"][0]["id"], "leader of kcat -L")
    # A tombstone, and a topic that did not exist.
    kcat(bootstrap, "-P", "-t", topic, "-p", "0", "-K", "\t", "-Z", stdin=b"gone\t\n")
    expect(consume(bootstrap, topic, "-p", "0", "-o", "-1")[0]["payload"], None, "tombstone")
    automatic = f"{prefix}-kcat-automatic"
    kcat(bootstrap, "-P", "-t", automatic, stdin=b"first\nsecond\n")
    expect([m["payload"] for m in consume(bootstrap, automatic)], ["first", "second"], "records of an automatically created topic")
    for future in admin.delete_topics([topic, automatic]).values():
        future.result(TIMEOUT_S)


class Member:
    """A `kcat -G` process; what it prints is read without blocking."""

    def __init__(self, bootstrap, group, topic, seen, name):
        self.name, self.seen, self.buffer = name, seen, b""
        self.errors = b""
        self.process = subprocess.Popen(
            ["kcat", "-b", bootstrap, "-G", group, "-J", "-u", "-X", "auto.offset.reset=earliest", "-X", "fetch.wait.max.ms=100",
             "-X", "session.timeout.ms=10000", "-X", "heartbeat.interval.ms=300", "-X", "auto.commit.interval.ms=200", topic],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for pipe in (self.process.stdout, self.process.stderr):
            os.set_blocking(pipe.fileno(), False)

    def step(self):
        readable, _, _ = select.select([self.process.stdout, self.process.stderr], [], [], 0.05)
        for pipe in readable:
            data = pipe.read() or b""
            if pipe is self.process.stderr:
                self.errors += data
            else:
                self.buffer += data
        *lines, self.buffer = self.buffer.split(b"\n")
        for line in lines:
            m = json.loads(line)
            self.seen.add(m["partition"], m["offset"], self.name)
        check(self.process.poll() is None, f"{self.name} ended: {self.errors.decode(errors='replace')[-500:]}")

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            check(False, f"{self.name} did not end: {self.errors.decode(errors='replace')[-500:]}")
        expect(self.process.returncode, 0, f"exit code of {self.name}")


def group(bootstrap, prefix):
    name = f"{prefix}-kcat-group"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    create(admin, name, 4)
    seen = Seen()
    members = [Member(bootstrap, name, name, seen, n) for n in "ab"]

    def step():
        for m in members:
            m.step()

    def produce(count):
        for p in range(4):
            kcat(bootstrap, "-P", "-t", name, "-p", str(p), "-X", "acks=all", stdin=b"".join(b"%d\n" % i for i in range(count)))

    def sizes():
        described = admin.describe_consumer_groups([name])[name].result(TIMEOUT_S)
        return described.state.name, sorted(len(m.assignment.topic_partitions) for m in described.members)

    def committed():
        offsets = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)])[name].result(TIMEOUT_S)
        return {t.partition: t.offset for t in offsets.topic_partitions}

    try:
        wait_for(lambda: sizes() == ("STABLE", [2, 2]), lambda: f"two members: {sizes()}", step=step)
        produce(50)
        wait_for(lambda: len(seen) == 200, lambda: f"two members: saw {len(seen)} of 200", step=step)
        wait_for(lambda: committed() == {p: 50 for p in range(4)}, lambda: f"committed {committed()}", step=step)
        members.pop().close()
        wait_for(lambda: sizes() == ("STABLE", [4]), lambda: f"after one left: {sizes()}", step=step)
        produce(25)
        wait_for(lambda: len(seen) == 300, lambda: f"after one left: saw {len(seen)} of 300", step=step)
        members.pop().close()
        expect(committed(), {p: 75 for p in range(4)}, "committed on close")
        produce(25)
        members.append(Member(bootstrap, name, name, seen, "c"))
        wait_for(lambda: len(seen) == 400, lambda: f"resumed: saw {len(seen)} of 400", step=step)
        members.pop().close()
        expect(committed(), {p: 100 for p in range(4)}, "committed on close")
    finally:
        for m in members:
            m.process.kill()
    admin.delete_consumer_groups([name])[name].result(TIMEOUT_S)
    admin.delete_topics([name])[name].result(TIMEOUT_S)


if __name__ == "__main__":
    main(globals())
