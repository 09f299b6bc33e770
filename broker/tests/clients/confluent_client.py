"""confluent-kafka (librdkafka): basic and group round trip."""
import base64
import random
import time

from confluent_kafka import (OFFSET_BEGINNING, Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer,
                             TopicCollection, TopicPartition)
from confluent_kafka.admin import (AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic,
                                   OffsetSpec, ResourceType)

from clientlib import CODECS, BASE_MS, PARTITIONS, Expected, Record, Seen, check, expect, main, records, wait_for

TIMEOUT_S = 30


def admin_client(bootstrap):
    return AdminClient({"bootstrap.servers": bootstrap})


def create_topic(admin, topic, partitions, config=None):
    for future in admin.create_topics([NewTopic(topic, partitions, 1, config=config or {})]).values():
        future.result(TIMEOUT_S)
    # Apache Kafka answers before its brokers' metadata has the topic.
    wait_for(lambda: topic in admin.list_topics(timeout=TIMEOUT_S).topics, lambda: f"{topic} is not in the metadata")


def produce(bootstrap, topic, batch, expected=None, **settings):
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5, "delivery.timeout.ms": 30000,
                         **settings})
    done = []

    def delivered(record):
        def callback(error, message):
            done.append((record, error, None if error else message.offset()))
        return callback

    for r in batch:
        producer.produce(topic, value=r.value, key=r.key, partition=r.partition, headers=r.headers or None,
                         timestamp=r.timestamp_ms, on_delivery=delivered(r))
    expect(producer.flush(TIMEOUT_S), 0, "messages still in the producer after the flush")
    for record, error, offset in done:
        check(error is None, f"delivery failed: {error}")
        if expected is not None:
            expected.acknowledged(record, offset)


def consume_all(bootstrap, topic, expected):
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"{topic}-unused", "enable.auto.commit": False,
                         "enable.partition.eof": False, "fetch.wait.max.ms": 100})
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in expected.by_partition])
    got, count, deadline = {}, 0, time.monotonic() + TIMEOUT_S
    while count < expected.total() and time.monotonic() < deadline:
        for m in consumer.consume(500, 0.5):
            check(m.error() is None, f"consumer: {m.error()}")
            headers = [(k, v) for k, v in (m.headers() or [])]
            got.setdefault(m.partition(), []).append(
                (m.offset(), Record(m.partition(), m.key(), m.value(), headers, m.timestamp()[1])))
            count += 1
    expected.consumed(got)
    for p in expected.by_partition:
        expect(consumer.get_watermark_offsets(TopicPartition(topic, p), TIMEOUT_S), (0, expected.end(p)), "watermarks")
    for at in (BASE_MS, BASE_MS + 100, BASE_MS + 250):
        for tp in consumer.offsets_for_times([TopicPartition(topic, p, at) for p in expected.by_partition], TIMEOUT_S):
            expect(tp.offset, expected.offset_for_time(tp.partition, at), f"offset for time {at - BASE_MS}")
    consumer.close()


def basic(bootstrap, prefix):
    topic = f"{prefix}-confluent-basic"
    admin = admin_client(bootstrap)
    create_topic(admin, topic, PARTITIONS, {"retention.ms": "-1"})
    expected = Expected()
    for n, codec in enumerate(CODECS):
        produce(bootstrap, topic, records(codec, n * 60), expected, **{"compression.type": codec, "enable.idempotence": n % 2 == 0})
    consume_all(bootstrap, topic, expected)

    # Every admin call that librdkafka has for topics and configs.
    description = admin.list_topics(topic, TIMEOUT_S).topics[topic]
    expect(len(description.partitions), PARTITIONS, "partitions in the metadata")
    cluster = admin.describe_cluster().result(TIMEOUT_S)
    check(cluster.controller is not None and len(cluster.nodes) >= 1, "describe cluster")
    described = list(admin.describe_topics(TopicCollection([topic])).values())[0].result(TIMEOUT_S)
    expect((described.name, len(described.partitions)), (topic, PARTITIONS), "describe topics")
    latest = admin.list_offsets({TopicPartition(topic, p): OffsetSpec.latest() for p in range(PARTITIONS)})
    for tp, future in latest.items():
        expect(future.result(TIMEOUT_S).offset, expected.end(tp.partition), "listed latest offset")
    resource = ConfigResource(ResourceType.TOPIC, topic)
    configs = admin.describe_configs([resource])[resource].result(TIMEOUT_S)
    expect(configs["retention.ms"].value, "-1", "retention.ms as created")
    admin.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[
        ConfigEntry("segment.bytes", "1048576", incremental_operation=AlterConfigOpType.SET),
        ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE)])])[resource].result(TIMEOUT_S)
    wait_for(lambda: admin.describe_configs([resource])[resource].result(TIMEOUT_S)["segment.bytes"].value == "1048576",
             lambda: "segment.bytes did not change")
    wait_for(lambda: admin.describe_configs([resource])[resource].result(TIMEOUT_S)["retention.ms"].value == "604800000",
             lambda: "retention.ms is not the default again")
    try:
        admin.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[
            ConfigEntry("no.such.config", "1", incremental_operation=AlterConfigOpType.SET)])])[resource].result(TIMEOUT_S)
        check(False, "an unknown topic config was accepted")
    except KafkaException as e:
        expect(e.args[0].name(), "INVALID_CONFIG", "unknown config")
    try:
        create_topic(admin, topic, 1)
        check(False, "a topic was created twice")
    except KafkaException as e:
        expect(e.args[0].name(), "TOPIC_ALREADY_EXISTS", "second create")
    admin.create_partitions([NewPartitions(topic, PARTITIONS + 2)])[topic].result(TIMEOUT_S)
    wait_for(lambda: len(admin.list_topics(topic, TIMEOUT_S).topics[topic].partitions) == PARTITIONS + 2,
             lambda: "the topic did not grow")
    for tp, future in admin.delete_records([TopicPartition(topic, 0, 10)]).items():
        expect(future.result(TIMEOUT_S).low_watermark, 10, "low watermark after delete records")
    produce(bootstrap, topic, [Record(PARTITIONS + 1, b"k", b"v", [], BASE_MS)])
    admin.delete_topics([topic])[topic].result(TIMEOUT_S)
    wait_for(lambda: topic not in admin.list_topics(timeout=TIMEOUT_S).topics, lambda: "the topic is still there")


def fill(bootstrap, prefix):
    """Several segments in each of 3 partitions: 12,000 records that hardly compress, in all codecs, for kafka-dump-log."""
    topic = f"{prefix}-confluent-fill"
    create_topic(admin_client(bootstrap), topic, 3, {"segment.bytes": "1048576"})
    random.seed(1)
    for n, codec in enumerate(CODECS):
        # Printable, since kafka-dump-log prints it.
        batch = [Record(i % 3, b"k%d" % i, base64.b64encode(random.randbytes(525)), [("h", b"v")], BASE_MS + i)
                 for i in range(n * 2400, (n + 1) * 2400)]
        produce(bootstrap, topic, batch, **{"compression.type": codec, "enable.idempotence": True, "batch.num.messages": 10})


def compaction(bootstrap, prefix):
    """A compacted topic: waits until old records are gone, and finds the newest of each key where they were."""
    topic = f"{prefix}-confluent-compacted"
    create_topic(admin_client(bootstrap), topic, 1, {
        "cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.01", "index.interval.bytes": "1000"})
    random.seed(2)
    sent, newest, count = {}, {}, 5000
    # What is left of 400 keys are 20 batches at least: enough for entries in the indexes.
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5, "enable.idempotence": True,
                         "batch.num.messages": 20})

    def delivered(key, value):
        def callback(error, message):
            check(error is None, f"delivery failed: {error}")
            sent[message.offset()] = (key, value)
            newest[key] = message.offset()
        return callback

    for n in range(count):
        key = b"k%d" % (n % 400)
        # Incompressible, or it would take long to fill segments; every 40th key ends with a tombstone.
        value = None if n % 40 == 39 and n > count - 400 else random.randbytes(800)
        producer.produce(topic, value=value, key=key, on_delivery=delivered(key, value))
        producer.poll(0)
    expect(producer.flush(TIMEOUT_S), 0, "messages still in the producer after the flush")

    def read():
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"{topic}-unused", "enable.auto.commit": False,
                             "enable.partition.eof": True, "fetch.wait.max.ms": 100, "check.crcs": True})
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        got, deadline = {}, time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            m = consumer.poll(1.0)
            if m is None:
                continue
            if m.error() is not None:
                expect(m.error().name(), "_PARTITION_EOF", "consumer")
                break
            got[m.offset()] = (m.key(), m.value())
        consumer.close()
        return got

    wait_for(lambda: len(read()) < count // 2, lambda: f"{len(read())} of {count} records are still there", timeout_s=60)
    got = read()
    for offset, record in got.items():
        expect(record, sent[offset], f"record at offset {offset}")
    last = {}
    for offset in sorted(got):
        last[got[offset][0]] = offset
    expect(last, newest, "the newest record of each key")
    # Nothing without a key is taken.
    outcome = []
    producer.produce(topic, value=b"no key", on_delivery=lambda error, message: outcome.append(error))
    producer.flush(TIMEOUT_S)
    expect([e and e.name() for e in outcome], ["INVALID_RECORD"], "a record without a key")


class Member:
    def __init__(self, bootstrap, group, topic, seen, name, protocol="cooperative-sticky", instance=None):
        settings = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest",
                    "enable.auto.commit": False, "session.timeout.ms": 10000, "heartbeat.interval.ms": 300,
                    "fetch.wait.max.ms": 100, "partition.assignment.strategy": protocol}
        if instance:
            settings["group.instance.id"] = instance
        self.name, self.seen, self.assigned, self.rebalances = name, seen, set(), 0
        self.consumer = Consumer(settings)
        self.consumer.subscribe([topic], on_assign=self.on_assign, on_revoke=self.on_revoke, on_lost=self.on_revoke)

    def on_assign(self, consumer, partitions):
        self.rebalances += 1
        self.assigned |= {p.partition for p in partitions}

    def on_revoke(self, consumer, partitions):
        self.assigned -= {p.partition for p in partitions}

    def step(self):
        batch = self.consumer.consume(40, 0.1)
        for m in batch:
            check(m.error() is None, f"{self.name}: {m.error()}")
            self.seen.add(m.partition(), m.offset(), self.name)
        if batch:
            self.consumer.commit(offsets=[TopicPartition(m.topic(), m.partition(), m.offset() + 1) for m in batch],
                                 asynchronous=False)

    def close(self):
        self.consumer.close()


def plain(count, partitions, start=0):
    return [Record(i % partitions, None, b"%d" % i, [], BASE_MS + i) for i in range(start, start + count)]


def group(bootstrap, prefix):
    admin = admin_client(bootstrap)
    for protocol in ("range", "cooperative-sticky"):
        round_trip(admin, bootstrap, f"{prefix}-confluent-{protocol}", protocol)
    static_members(admin, bootstrap, f"{prefix}-confluent-static")


def round_trip(admin, bootstrap, name, protocol):
    partitions = 4
    create_topic(admin, name, partitions)
    seen = Seen()
    a = Member(bootstrap, name, name, seen, "a", protocol)
    b = Member(bootstrap, name, name, seen, "b", protocol)

    def both():
        a.step()
        b.step()

    # Records flow only while the group is stable: a commit that meets a rebalance is refused, and its records come again.
    wait_for(lambda: len(a.assigned) == 2 and len(b.assigned) == 2, lambda: f"assigned {a.assigned} and {b.assigned}", step=both)
    produce(bootstrap, name, plain(200, partitions))
    wait_for(lambda: len(seen) == 200, lambda: f"two members: saw {len(seen)} of 200", step=both)
    described = admin.describe_consumer_groups([name])[name].result(TIMEOUT_S)
    expect((described.state.name, len(described.members)), ("STABLE", 2), "described group")
    listed = admin.list_consumer_groups().result(TIMEOUT_S)
    check(name in [g.group_id for g in listed.valid], "the group is not listed")
    try:
        admin.delete_consumer_groups([name])[name].result(TIMEOUT_S)
        check(False, "a group with members was deleted")
    except KafkaException as e:
        expect(e.args[0].name(), "NON_EMPTY_GROUP", "delete of a group in use")
    b.close()
    wait_for(lambda: len(a.assigned) == partitions, lambda: f"after one left: assigned {a.assigned}", step=a.step)
    produce(bootstrap, name, plain(100, partitions, 200))
    wait_for(lambda: len(seen) == 300, lambda: f"after one left: saw {len(seen)} of 300", step=a.step)
    a.close()
    produce(bootstrap, name, plain(100, partitions, 300))
    c = Member(bootstrap, name, name, seen, "c", protocol)
    wait_for(lambda: len(seen) == 400, lambda: f"resumed: saw {len(seen)} of 400", step=c.step)
    for tp in c.consumer.committed([TopicPartition(name, p) for p in range(partitions)], TIMEOUT_S):
        expect(tp.offset, 100, f"committed offset of partition {tp.partition}")
    c.close()
    # Offsets through the admin API: read, move back, read again as a member.
    request = ConsumerGroupTopicPartitions(name)
    offsets = admin.list_consumer_group_offsets([request])[name].result(TIMEOUT_S)
    expect(sorted((t.partition, t.offset) for t in offsets.topic_partitions), [(p, 100) for p in range(partitions)], "listed offsets")
    admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(name, [TopicPartition(name, 2, 95)])])[name].result(TIMEOUT_S)
    again = Seen()
    d = Member(bootstrap, name, name, again, "d", protocol)
    wait_for(lambda: len(again) == 5, lambda: f"after the reset: saw {len(again)} of 5", step=d.step)
    expect(again.seen, {(2, o) for o in range(95, 100)}, "records after the reset")
    d.close()
    admin.delete_consumer_groups([name])[name].result(TIMEOUT_S)
    check(name not in [g.group_id for g in admin.list_consumer_groups().result(TIMEOUT_S).valid], "the group is still listed")
    admin.delete_topics([name])[name].result(TIMEOUT_S)


def static_members(admin, bootstrap, name):
    create_topic(admin, name, 4)
    seen = Seen()
    a = Member(bootstrap, name, name, seen, "a", "range", "one")
    b = Member(bootstrap, name, name, seen, "b", "range", "two")

    def both():
        a.step()
        b.step()

    wait_for(lambda: len(a.assigned) == 2 and len(b.assigned) == 2, lambda: f"assigned {a.assigned} and {b.assigned}", step=both)
    kept, before, theirs = set(a.assigned), a.rebalances, set(b.assigned)
    b.close()
    b = Member(bootstrap, name, name, seen, "b again", "range", "two")
    produce(bootstrap, name, plain(40, 4))
    wait_for(lambda: len(seen) == 40 and b.assigned == theirs, lambda: f"static member back: saw {len(seen)}, assigned {b.assigned}",
             step=both)
    expect((a.rebalances, a.assigned), (before, kept), "rebalances of the other member while a static member bounced")
    members = admin.describe_consumer_groups([name])[name].result(TIMEOUT_S).members
    expect(sorted(m.group_instance_id for m in members), ["one", "two"], "static members")
    a.close()
    b.close()


if __name__ == "__main__":
    main(globals())
