"""Compacted topics of a kaas that is killed again and again while it compacts: compact_crash.py check --kaas PATH --kaas-engine PATH

Producers of every compression, half of them idempotent, each with keys of its own, write to topics with small segments; the broker
gets SIGKILL every few seconds. Then the newest record of each key is compared with what was acknowledged last, and what is read from
anywhere in the log, by librdkafka and by kcat, with what is read from its beginning; `kaas-engine verify` has to find nothing.
"""
import pathlib
import random
import socket
import subprocess
import tempfile
import threading
import time

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from clientlib import CODECS, check, expect, wait_for, whole_check

TIMEOUT_S, KILLS, KEYS, PARTITIONS = 60, 5, 15, 2
BROKER = ["log.cleaner.backoff.ms=20", "log.cleaner.threads=2", "log.cleaner.dedupe.buffer.size=2097152",
          # A batch is larger than the buffers, and a round takes long enough to be killed in.
          "log.cleaner.io.buffer.size=1024", "log.cleaner.io.max.bytes.per.second=4000000", "log.retention.check.interval.ms=300"]
COMPACTED = {"cleanup.policy": "compact", "segment.bytes": "60000", "min.cleanable.dirty.ratio": "0.05", "delete.retention.ms": "500"}
TOPICS = {
    "plain": {},
    # Compaction leaves many segments without a record.
    "small": {"segment.bytes": "20000", "index.interval.bytes": "300"},
    "append-time": {"message.timestamp.type": "LogAppendTime"},
    "both": {"cleanup.policy": "compact,delete", "retention.ms": "-1"},
}


class Kaas:
    def __init__(self, arguments, folder):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.bootstrap = f"127.0.0.1:{free.getsockname()[1]}"
        self.arguments, self.data = arguments, folder / "data"
        self.log_path = folder / "kaas.log"
        self.log = open(self.log_path, "a")

    def start(self):
        settings = [word for setting in BROKER for word in ("--set", setting)]
        self.process = subprocess.Popen([self.arguments.kaas, "--data-dir", self.data, "--listen", self.bootstrap, *settings],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log, text=True)
        check(any("bootstrap.servers=" in line for line in self.process.stdout), f"kaas did not start: {self.said()[-2000:]}")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def said(self):
        return self.log_path.read_text()

    def rounds(self):
        return self.said().count(" compacted ")

    def settled(self):
        """Returns when nothing has been compacted for a while."""
        last = [self.rounds(), time.monotonic()]

        def quiet():
            if self.rounds() != last[0]:
                last[:] = [self.rounds(), time.monotonic()]
            return time.monotonic() - last[1] > 4
        wait_for(quiet, lambda: "the cleaner does not come to an end", 120)

    def verify(self, when):
        done = subprocess.run([self.arguments.kaas_engine, "verify", self.data], capture_output=True, text=True, timeout=TIMEOUT_S)
        expect(done.returncode, 0, f"exit code of verify {when}: {done.stdout[-3000:]}")


class Writing:
    """What producers have sent: of each key what was acknowledged last, and what may be there behind it."""

    def __init__(self, bootstrap):
        self.bootstrap, self.stopping, self.lock = bootstrap, threading.Event(), threading.Lock()
        self.acknowledged, self.pending, self.problems = {}, {}, []
        self.threads = [threading.Thread(target=self.produce, args=(n, codec)) for n, codec in enumerate([*CODECS, "none"])]
        for thread in self.threads:
            thread.start()

    def produce(self, number, codec):
        chance = random.Random(number)
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 3, "acks": "all", "compression.type": codec,
                             "enable.idempotence": number % 2 == 0, "batch.num.messages": 20, "message.timeout.ms": 120_000,
                             # In order also without idempotence, and whatever is sent twice.
                             "max.in.flight": 5 if number % 2 == 0 else 1, "log_level": 0, "retry.backoff.ms": 50,
                             "reconnect.backoff.max.ms": 200})
        sent = 0
        while not self.stopping.is_set():
            place = (chance.choice(list(TOPICS)), chance.randrange(PARTITIONS), b"p%d-k%d" % (number, chance.randrange(KEYS)))
            sent += 1
            value = None if chance.randrange(9) == 0 else b"%d-" % sent + chance.randbytes(chance.randrange(150))
            with self.lock:
                self.pending.setdefault(place, []).append(value)
            producer.produce(place[0], partition=place[1], key=place[2], value=value, on_delivery=self.delivered(place, value))
            producer.poll(0)
            if sent % 40 == 0:
                time.sleep(0.05)
        if producer.flush(TIMEOUT_S) != 0:
            self.problems.append(f"producer {number} could not send everything")

    def delivered(self, place, value):
        def callback(error, message):
            with self.lock:
                before = self.acknowledged.get(place, (-1, None))[0]
                if error is not None or message.offset() <= before:
                    self.problems.append(f"{place}: {error}, offset {message.offset()} behind {before}")
                    return
                self.acknowledged[place] = (message.offset(), value)
                waiting = self.pending[place]
                del waiting[:waiting.index(value) + 1]
        return callback

    def stop(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join()
        expect(self.problems, [], "problems of the producers")


def read(bootstrap, topic, partition, start):
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False, "enable.partition.eof": True,
                         "auto.offset.reset": "error", "fetch.wait.max.ms": 20, "check.crcs": True})
    consumer.assign([TopicPartition(topic, partition, start)])
    records = []
    while (message := consumer.poll(TIMEOUT_S)) is not None and message.error() is None:
        records.append((message.offset(), message.key(), message.value()))
    consumer.close()
    check(message is not None, f"no end of {topic}-{partition} within {TIMEOUT_S} s")
    expect(message.error().code(), KafkaError._PARTITION_EOF, f"what ends {topic}-{partition} ({message.error()})")
    return records


def compare(bootstrap, writing, chance):
    """Records that are left."""
    left = 0
    for topic in TOPICS:
        for partition in range(PARTITIONS):
            records = read(bootstrap, topic, partition, 0)
            left += len(records)
            found = {key: (offset, value) for offset, key, value in records}
            for place, (offset, value) in writing.acknowledged.items():
                if place[:2] != (topic, partition):
                    continue
                there = found.pop(place[2], (offset, None))
                # What was not acknowledged may be there all the same, but nothing older than what was.
                maybe = there[0] >= offset and there[1] in [value, *writing.pending[place]]
                check(maybe, f"{place}: {there} is there, {(offset, value)} was acknowledged")
            expect(found, {}, f"keys of {topic}-{partition} that nobody has written")
            for start in [chance.randrange(records[-1][0] + 1) for _ in range(3)]:
                expect(read(bootstrap, topic, partition, start), [r for r in records if r[0] >= start], f"{topic}-{partition} from {start}")
            out = subprocess.run(["kcat", "-b", bootstrap, "-C", "-t", topic, "-p", str(partition), "-o", "beginning", "-e", "-q", "-f", "%o\n"],
                                 capture_output=True, text=True, timeout=TIMEOUT_S)
            expect((out.returncode, out.stderr), (0, ""), "exit code and standard error of kcat")
            expect([int(line) for line in out.stdout.split()], [record[0] for record in records], f"offsets in {topic}-{partition}, by kcat")
    return left


def emptied(kaas, admin):
    """One round that leaves segment after segment without a record: consumers come through."""
    create(admin, "emptied", 1, {**COMPACTED, "segment.bytes": "1000", "min.cleanable.dirty.ratio": "1.0"})
    producer = Producer({"bootstrap.servers": kaas.bootstrap, "acks": "all", "batch.num.messages": 1, "linger.ms": 0})
    for n in range(400):
        producer.produce("emptied", key=b"first" if n == 0 else b"same", value=b"%d" % n, partition=0)
    expect(producer.flush(TIMEOUT_S), 0, "records that were not sent")
    entry = ConfigEntry("min.cleanable.dirty.ratio", "0.0", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, "emptied", incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)
    wait_for(lambda: "dir=topics/emptied/0" in kaas.said(), lambda: f"no round: {kaas.said()[-1000:]}")
    records = read(kaas.bootstrap, "emptied", 0, 0)
    expect((records[0], records[-1]), ((0, b"first", b"0"), (399, b"same", b"399")), "the first and the last record")
    check(len(records) < 20, f"{len(records)} records are left")


def create(admin, topic, partitions, configs):
    new = NewTopic(topic, partitions, 1, config=configs)
    admin.create_topics([new])[topic].result(TIMEOUT_S)


def scenario(arguments, folder):
    chance = random.Random(7)
    kaas = Kaas(arguments, folder)
    kaas.start()
    try:
        admin = AdminClient({"bootstrap.servers": kaas.bootstrap})
        emptied(kaas, admin)
        for topic, configs in TOPICS.items():
            create(admin, topic, PARTITIONS, {**COMPACTED, **configs})
        writing = Writing(kaas.bootstrap)
        for number in range(KILLS):
            time.sleep(chance.uniform(1.5, 4))
            kaas.kill()
            if number == KILLS // 2:
                kaas.verify("after SIGKILL")
            kaas.start()
        writing.stop()
        kaas.settled()
        left = compare(kaas.bootstrap, writing, chance)
        kaas.process.terminate()
        expect(kaas.process.wait(TIMEOUT_S), 0, "exit code of kaas")
        kaas.verify("after a clean stop")
        kaas.start()
        kaas.settled()
        compare(kaas.bootstrap, writing, chance)
        rounds = kaas.rounds()
        check(rounds >= len(TOPICS) * PARTITIONS, f"only {rounds} rounds")
        check("compaction failed" not in kaas.said(), f"a round failed: {kaas.said()[-2000:]}")
        return f"ok: {left} records are left after {rounds} rounds"
    finally:
        kaas.kill()


def run(arguments):
    with tempfile.TemporaryDirectory() as folder:
        return scenario(arguments, pathlib.Path(folder))


if __name__ == "__main__":
    whole_check(__doc__, run)
