"""The same log, compacted by Apache Kafka and by kaas: compact_kafka.py check --kaas PATH --kaas-engine PATH

Starts a real Kafka and fills it: every compression, tombstones, idempotent producers, transactions across each other, records without
keys from before a topic was compacted, a log start inside of a segment, young records. Copies the log directory and imports the
copy into kaas. Then both compact, and what kafka-dump-log finds in both is compared batch by batch and record by record: offsets,
sequences, timestamps, compression, which batches have a delete horizon, what is in them; and what consumers read and are told of
times. Then more is produced, and all of it is done again, twice: later rounds meet the horizons, markers and emptied batches that
Kafka left in earlier ones.
"""
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, OffsetSpec,
                                   ResourceType)

from clientlib import CODECS, Failed, check, expect, wait_for, whole_check
from dump_log import dump
from javatools import Tools

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent.parent / "benches" / "kafka"))
from kafka_broker import KafkaBroker  # noqa: E402

HOUR_MS = 3_600_000
# Long enough ago not to be young, not so long that idempotent producers are forgotten.
BASE_MS = int(time.time() * 1000) - 12 * HOUR_MS
# Segments roll by the records' own time: a record every 10 ms, a segment every 300 ms.
STEP_MS, SEGMENT_MS = 10, 300
SETTINGS = ["log.cleaner.backoff.ms=100", "log.initial.task.delay.ms=200", "log.roll.ms=100000000", "log.retention.ms=-1",
            # A copy of the log directory tells where a log starts.
            "log.flush.start.offset.checkpoint.interval.ms=100", "transaction.state.log.num.partitions=1", "offsets.topic.num.partitions=1"]
COMPACTED = {"cleanup.policy": "compact", "segment.ms": str(SEGMENT_MS), "index.interval.bytes": "512"}
# A share is never above 1: so nothing is compacted before it is to be.
NEVER, AT_ONCE = "1.0", "0.0"
TOPICS = {
    "codecs": {"delete.retention.ms": "0"},
    "tombstones": {"delete.retention.ms": str(HOUR_MS)},
    "transactions": {"delete.retention.ms": "0"},
    "markers": {"delete.retention.ms": str(HOUR_MS)},
    "keyless": {"cleanup.policy": "delete", "retention.ms": "-1", "delete.retention.ms": "0"},
    "trimmed": {"cleanup.policy": "compact,delete", "retention.ms": "-1", "delete.retention.ms": "0"},
    "young": {"min.compaction.lag.ms": str(HOUR_MS), "delete.retention.ms": "0"},
    "append-time": {"message.timestamp.type": "LogAppendTime", "delete.retention.ms": "0"},
    # Several segments in the place of many.
    "groups": {"segment.bytes": str(1 << 20), "segment.ms": str(HOUR_MS), "delete.retention.ms": "0"},
}
TRANSACTIONAL = ("transactions", "markers")
TIMEOUT_S, PATIENCE_S = 30, 120


class Filled:
    """A Kafka's topics, and how far in time each has come."""

    def __init__(self, bootstrap):
        self.bootstrap = bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self.now_ms = dict.fromkeys(TOPICS, BASE_MS)
        self.number = 0

    def create(self):
        new = [NewTopic(topic, 1, 1, config={**COMPACTED, "min.cleanable.dirty.ratio": NEVER, **configs}) for topic, configs in TOPICS.items()]
        for future in self.admin.create_topics(new).values():
            future.result(TIMEOUT_S)
        wait_for(lambda: set(TOPICS) <= set(self.admin.list_topics(timeout=TIMEOUT_S).topics), lambda: "topics are missing")

    def alter(self, topic, **configs):
        entries = [ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET) for name, value in configs.items()]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        self.admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)

    def producer(self, **configs):
        # Batches end where flush is called, not before.
        return Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 1000, "acks": "all", **configs})

    def send(self, producer, topic, key, value, step_ms=STEP_MS):
        self.now_ms[topic] += step_ms
        self.number += 1
        producer.produce(topic, value=value, key=key, partition=0, timestamp=self.now_ms[topic],
                         headers=[("n", str(self.number).encode())] if self.number % 3 == 0 else None, on_delivery=delivered)

    def batch(self, producer, topic, keys, count, step_ms=STEP_MS):
        """One batch of `count` records, some of them tombstones."""
        for _ in range(count):
            n = self.number
            value = None if n % 5 == 2 else f"{n}-".encode() + b"x" * (n * 31 % 200)
            self.send(producer, topic, b"key-%d" % (n * 7 % keys), value, step_ms)
        expect(producer.flush(TIMEOUT_S), 0, "records that were not sent")

    def plain(self, topic, first_key):
        idempotent = [self.producer(**{"compression.type": codec, "enable.idempotence": True}) for codec in CODECS]
        others = [self.producer(**{"compression.type": codec}) for codec in CODECS]
        for n in range(60):
            self.batch(idempotent[n % 5], topic, 11, n % 9 + 1)
            self.batch(others[n * 3 % 5], topic, 17, n % 4 + 1)
        # A producer that is not heard of again; and one whose last batch is superseded as a whole.
        quiet = self.producer(**{"enable.idempotence": True})
        self.send(quiet, topic, b"superseded", b"1")
        quiet.flush(TIMEOUT_S)
        self.batch(idempotent[0], topic, 11, 5)
        self.send(others[0], topic, b"superseded", b"2")
        self.send(others[0], topic, first_key, b"stays")
        others[0].flush(TIMEOUT_S)

    def transactions(self, topic, round_number):
        settings = {"transaction.timeout.ms": 60000}
        producers = [self.producer(**{"transactional.id": f"{topic}-{n}", **settings}) for n in range(3)]
        for producer in producers:
            producer.init_transactions(TIMEOUT_S)
        plain = self.producer(**{"enable.idempotence": True})
        for n in range(12):
            for producer in producers:
                producer.begin_transaction()
            for m in range(1 + n % 4):
                for number, producer in enumerate(producers):
                    self.batch(producer, topic, 6 + number, 1 + (n + m) % 3, 7)
                self.batch(plain, topic, 9, 1 + m, 7)
            # Each ends in another order, some long after their last record.
            for number in [(n + k) % 3 for k in range(3)]:
                if (n + number) % 3 == 0 or n % 5 == 4:
                    producers[number].abort_transaction(TIMEOUT_S)
                else:
                    producers[number].commit_transaction(TIMEOUT_S)
                self.batch(plain, topic, 9, 2)
        # Of one transactional producer nothing is left but a marker, in the end; of another an aborted batch.
        last = self.producer(**{"transactional.id": f"{topic}-last-{round_number}", **settings})
        last.init_transactions(TIMEOUT_S)
        last.begin_transaction()
        self.batch(last, topic, 9, 3)
        last.abort_transaction(TIMEOUT_S)
        for key in range(9):
            self.send(plain, topic, b"key-%d" % key, b"last")
        plain.flush(TIMEOUT_S)

    def fill(self, round_number):
        for topic in ("codecs", "tombstones", "trimmed"):
            self.plain(topic, b"only in round %d" % round_number)
        for topic in TRANSACTIONAL:
            self.transactions(topic, round_number)
        producer = self.producer()
        if round_number == 1:
            for n in range(200):
                self.send(producer, "keyless", None if n % 3 == 0 else b"key-%d" % (n % 7), b"%d" % n)
                if n % 4 == 3:
                    producer.flush(TIMEOUT_S)
            producer.flush(TIMEOUT_S)
            self.alter("keyless", cleanup_policy="compact")
        for _ in range(30):
            self.batch(producer, "keyless", 8, 4)
            self.batch(producer, "young", 8, 4)
        # From here on its records are too young, but for one that claims to be old and stands behind them.
        self.now_ms["young"] = int(time.time() * 1000) - HOUR_MS // 2 + round_number
        for _ in range(12):
            self.batch(producer, "young", 8, 4)
        self.now_ms["young"] = BASE_MS + round_number * HOUR_MS
        self.batch(producer, "young", 8, 4)
        idempotent = self.producer(**{"enable.idempotence": True})
        for n in range(80):
            # What does not compress, so that segments fill.
            self.send(idempotent if n % 3 else producer, "groups", b"key-%d" % (n * 5 % (40 - 8 * round_number)), os.urandom(40_000))
            idempotent.flush(TIMEOUT_S)
            producer.flush(TIMEOUT_S)
        for n in range(30):
            self.batch(producer, "append-time", 8, 4)
            time.sleep(0.02)
        if round_number == 1:
            for future in self.admin.delete_records([TopicPartition("trimmed", 0, 37)]).values():
                future.result(TIMEOUT_S)
        # The last segment is never compacted by Kafka: here it holds one record, and the one before it a batch that stays.
        for topic in TOPICS:
            time.sleep(SEGMENT_MS / 1000 if topic == "append-time" else 0)
            self.send(producer, topic, b"stays of round %d" % round_number, b"stays")
            producer.flush(TIMEOUT_S)
        time.sleep(SEGMENT_MS / 1000 + 0.05)
        for topic in TOPICS:
            if topic in TRANSACTIONAL:
                # Markers carry the broker's time: only what is later than they are begins a new segment.
                self.now_ms[topic] = int(time.time() * 1000)
            step_ms = 2 * HOUR_MS if topic == "groups" else 10 * SEGMENT_MS
            self.send(producer, topic, b"fills round %d" % round_number, b"fills", step_ms)
            producer.flush(TIMEOUT_S)

    def compact(self, checkpoint):
        """Has Kafka compact each topic once, as far as it may."""
        before = checkpointed(checkpoint)
        for topic in TOPICS:
            self.alter(topic, min_cleanable_dirty_ratio=AT_ONCE)
        wait_for(lambda: all(checkpointed(checkpoint).get(topic, -1) > before.get(topic, -1) for topic in moving(bool(before))),
                 lambda: f"Kafka has not compacted all topics: {checkpointed(checkpoint)}, {before} before", PATIENCE_S)
        for topic in TOPICS:
            self.alter(topic, min_cleanable_dirty_ratio=NEVER)
        return checkpointed(checkpoint)


def moving(again):
    """The topics of which something is compacted: behind young records nothing is, in no round."""
    return [topic for topic in TOPICS if topic != "young" or not again]


def delivered(error, _):
    check(error is None, f"delivery failed: {error}")


def checkpointed(path):
    """How far each topic is compacted, from Kafka's cleaner-offset-checkpoint."""
    if not path.exists():
        return {}
    lines = path.read_text().splitlines()[2:]
    return {topic: int(offset) for topic, _, offset in (line.rsplit(" ", 2) for line in lines)}


def copy_logs(logs, to):
    """The log directory of a Kafka that runs, but writes nothing: as if it had been stopped."""
    for _ in range(20):
        try:
            shutil.copytree(logs, to, ignore=lambda _, names: [n for n in names if n.endswith(".deleted") or n == ".lock"])
            (to / ".kafka_cleanshutdown").touch()
            return
        except shutil.Error:
            shutil.rmtree(to)
            time.sleep(0.2)
    raise Failed("the log directory does not stand still")


def batches_of(tools, logs):
    """The batches that kafka-dump-log finds in these files, with the records in each."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        partition = pathlib.Path(folder) / "topic-0"
        partition.mkdir()
        for base, log in logs:
            copy = partition / f"{base:020}.log"
            shutil.copyfile(log, copy)
            out = dump(tools, copy, "--deep-iteration", "--print-data-log", gaps=True)
            for line in out.splitlines():
                if line.startswith("baseOffset"):
                    fields = dict(re.findall(r"(\w+): (\S+)", line))
                    found.append(({**fields, "segment": base}, []))
                elif line.startswith("| "):
                    found[-1][1].append(line)
    return found


def kafka_logs(folder):
    return [(int(log.stem), log) for log in sorted(folder.glob("*.log"))]


def kaas_logs(kaas_engine, folder):
    """Those that the manifest counts."""
    manifest = max(folder.glob("manifest.*.json"), key=lambda path: [int(part, 16) for part in path.name.split(".")[1:3]])
    entries = json.loads(manifest.read_text())["segments"]
    names = {int(m.group(1)): log for log in folder.glob("*.log") if (m := re.search(r"-(\d+)(?:-\w+)?\.log$", log.name))}
    return [(entry["base_offset"], names[entry["base_offset"]]) for entry in entries]


# What differs because it says where and when a batch was rewritten, and by whose compressor.
OWN = {"position", "size", "crc", "segment", "partitionLeaderEpoch"}


def comparable(batch):
    fields, records = batch
    same = {name: value for name, value in fields.items() if name not in OWN}
    same["deleteHorizonMs"] = fields["deleteHorizonMs"] != "OptionalLong.empty"
    # Timestamps are relative to a horizon, so that its value has a say in the size.
    if fields["compresscodec"] == "none" and not same["deleteHorizonMs"]:
        same["size"] = fields["size"]
    return same, records


def compare(topic, kafka, kaas, up_to):
    """Batch by batch up to an offset. Returns the numbers of batches, emptied batches and horizons."""
    def below(batches):
        return [batch for batch in batches if int(batch[0]["lastOffset"]) < up_to]
    kafka, kaas = below(kafka), below(kaas)
    offsets = {batch[0]["baseOffset"] for batch in kafka}
    # kaas ends each segment that it writes with the last batch there was, if need be without records; Kafka only the last one.
    ends = {batch[0]["segment"]: batch[0]["baseOffset"] for batch in kaas}
    only_kaas = [fields for fields, _ in kaas if fields["baseOffset"] not in offsets]
    for fields in only_kaas:
        check((fields["count"], fields["baseOffset"]) == ("0", ends[fields["segment"]]), f"{topic}: only kaas keeps {fields}")
    kaas = [batch for batch in kaas if batch[0]["baseOffset"] in offsets]
    for number, (theirs, ours) in enumerate(zip(map(comparable, kafka), map(comparable, kaas))):
        check(theirs == ours, f"{topic}: batch {number} of Kafka\n  {theirs}\nbatch {number} of kaas\n  {ours}")
    expect(len(kaas), len(kafka), f"batches of {topic}")
    return {"batches": len(kafka), "emptied": sum(1 for f, _ in kafka if f["count"] == "0"),
            "horizons": sum(1 for f, _ in kafka if f["deleteHorizonMs"] != "OptionalLong.empty")}


def seen(bootstrap):
    """What clients read of each topic, with both isolation levels, and what they are told of times."""
    topics = {}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for topic in TOPICS:
        told = {}
        for isolation in ("read_uncommitted", *(["read_committed"] if topic in TRANSACTIONAL else [])):
            consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False, "isolation.level": isolation,
                                 "enable.partition.eof": True, "fetch.wait.max.ms": 50, "auto.offset.reset": "error"})
            low, _ = consumer.get_watermark_offsets(TopicPartition(topic, 0), TIMEOUT_S)
            consumer.assign([TopicPartition(topic, 0, low)])
            records = []
            while (message := consumer.poll(TIMEOUT_S)) is not None and message.error() is None:
                value = None if message.value() is None else hashlib.md5(message.value()).hexdigest()
                records.append((message.offset(), message.key(), value, message.timestamp(), message.headers()))
            check(message is not None, f"no end of {topic} within {TIMEOUT_S} s")
            expect(message.error().code(), KafkaError._PARTITION_EOF, f"what ends {topic}")
            told[isolation] = records
            if isolation == "read_uncommitted":
                # Each record's own time, and the one behind it.
                times = sorted({record[3][1] + more for record in records[::7] for more in (0, 1)})[:30]
                found = [consumer.offsets_for_times([TopicPartition(topic, 0, at)], TIMEOUT_S)[0].offset for at in times]
                told["times"] = list(zip(times, found))
            consumer.close()
        for name, spec in (("earliest", OffsetSpec.earliest()), ("latest", OffsetSpec.latest()), ("newest", OffsetSpec.max_timestamp())):
            partition = TopicPartition(topic, 0)
            answer = admin.list_offsets({partition: spec})[partition].result(TIMEOUT_S)
            told[name] = (answer.offset, answer.timestamp)
        topics[topic] = told
    return topics


def compare_told(topic, kafka, kaas):
    records = kaas["read_uncommitted"]
    for (at, theirs), (_, ours) in zip(kafka.pop("times"), kaas.pop("times")):
        # Where a segment was emptied, Kafka takes the time of its file for that of its records, and finds none that are there.
        check(theirs in (ours, -1), f"offset for time {at} of {topic}: Kafka says {theirs}, kaas {ours}")
        first = next((record[0] for record in records if record[3][1] >= at), -1)
        # Markers have times, too, and are not read.
        check(ours == first or topic.startswith(TRANSACTIONAL), f"offset for time {at} of {topic}: {ours}, the record's is {first}")
    for what, told in kafka.items():
        expect(kaas[what], told, f"{what} of {topic}")


class Kaas:
    def __init__(self, arguments, source, data):
        configs = ["--config", f"min.cleanable.dirty.ratio={AT_ONCE}"]
        done = subprocess.run([arguments.kaas_engine, "import", "--no-groups", *configs, source, data],
                              capture_output=True, text=True, timeout=60)
        expect(done.returncode, 0, f"exit code of import: {done.stdout[-2000:]}{done.stderr[-1000:]}")
        self.arguments, self.data = arguments, pathlib.Path(data)
        self.log = open(self.data.parent / f"{self.data.name}.log", "w+")

    def compact(self, topics):
        """Starts kaas, and stops it when these topics are compacted. Returns what clients see of it then."""
        arguments = [self.arguments.kaas, "--data-dir", str(self.data), "--listen", "127.0.0.1:0", "--set", "log.cleaner.backoff.ms=50",
                     "--set", "log.retention.check.interval.ms=200"]
        process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log, text=True)
        try:
            def compacted():
                text = (self.data.parent / f"{self.data.name}.log").read_text()
                lines = [line for line in text.splitlines() if " compacted " in line]
                return all(any(f"topics/{topic}/0" in line for line in lines) for topic in topics)
            log = self.data.parent / f"{self.data.name}.log"
            wait_for(compacted, lambda: f"kaas has not compacted all topics: {log.read_text()[-3000:]}", PATIENCE_S)
            ready = next(line for line in process.stdout if "bootstrap.servers=" in line)
            told = seen(ready.rsplit("=", 1)[1].strip())
        finally:
            process.terminate()
            process.wait(30)
        expect(process.returncode, 0, "exit code of kaas")
        verified = subprocess.run([self.arguments.kaas_engine, "verify", str(self.data)], capture_output=True, text=True, timeout=60)
        expect(verified.returncode, 0, f"exit code of verify: {verified.stdout}")
        return told


def run(arguments):
    tools = Tools("kafka-4")
    summary = {}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(arguments.keep or folder)
        logs = folder / "kafka" / "logs"
        kafka = KafkaBroker(folder / "kafka", settings=SETTINGS, heap="512M").wait_ready()
        rounds = []
        try:
            filled = Filled(kafka.bootstrap)
            filled.create()
            for number in (1, 2, 3):
                filled.fill(number)
                before, after = folder / f"before-{number}", folder / f"kafka-{number}"
                copy_logs(logs, before)
                ends = filled.compact(logs / "cleaner-offset-checkpoint")
                copy_logs(logs, after)
                rounds.append((number, before, after, ends, seen(kafka.bootstrap)))
        finally:
            kafka.stop()
        for number, before, after, ends, kafka_told in rounds:
            kaas = Kaas(arguments, before, folder / f"kaas-{number}")
            # How far Kafka had compacted them the import tells, so kaas goes on from there, too.
            kaas_told = kaas.compact(moving(number > 1))
            for topic in TOPICS:
                compare_told(f"{topic}, round {number}", kafka_told[topic], kaas_told[topic])
                theirs = batches_of(tools, kafka_logs(after / f"{topic}-0"))
                ours = batches_of(tools, kaas_logs(arguments.kaas_engine, kaas.data / "topics" / topic / "0"))
                summary[f"{topic}, round {number}"] = compare(f"{topic}, round {number}", theirs, ours, ends[topic])
    # What was met, so that who calls can tell that it was enough.
    return "ok " + json.dumps({what: sum(one[what] for one in summary.values()) for what in ("batches", "emptied", "horizons")})


def keep(parser):
    parser.add_argument("--keep", type=pathlib.Path, help="work in this directory, and leave everything there")


if __name__ == "__main__":
    whole_check(__doc__, run, keep)
