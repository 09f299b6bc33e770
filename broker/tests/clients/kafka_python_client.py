"""kafka-python: basic and group round trip."""
import threading
import time

from kafka import ConsumerRebalanceListener, KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic
from kafka.errors import KafkaError, TopicAlreadyExistsError
from kafka.structs import OffsetAndMetadata

from clientlib import BASE_MS, CODECS, PARTITIONS, Expected, Record, Seen, check, expect, main, records, wait_for

TIMEOUT_S = 30


def produce(bootstrap, topic, batch, expected=None, codec="none", idempotent=True):
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=5, delivery_timeout_ms=30000, request_timeout_ms=20000,
                             compression_type=None if codec == "none" else codec, enable_idempotence=idempotent)
    futures = [(r, producer.send(topic, value=r.value, key=r.key, partition=r.partition, headers=r.headers,
                                 timestamp_ms=r.timestamp_ms)) for r in batch]
    producer.flush(TIMEOUT_S)
    for r, future in futures:
        metadata = future.get(TIMEOUT_S)
        if expected is not None:
            expected.acknowledged(r, metadata.offset)
    producer.close(TIMEOUT_S)


def basic(bootstrap, prefix):
    topic = f"{prefix}-kafka-python-basic"
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.create_topics([NewTopic(topic, PARTITIONS, 1, topic_configs={"retention.ms": "-1"})], timeout_ms=20000)
    expected = Expected()
    for n, codec in enumerate(CODECS):
        produce(bootstrap, topic, records(codec, n * 60, null_headers=False), expected, codec, idempotent=n % 2 == 0)

    consumer = KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False, fetch_max_wait_ms=100)
    partitions = [TopicPartition(topic, p) for p in range(PARTITIONS)]
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    got, count, deadline = {}, 0, time.monotonic() + TIMEOUT_S
    while count < expected.total() and time.monotonic() < deadline:
        for tp, batch in consumer.poll(500).items():
            for m in batch:
                record = Record(tp.partition, m.key, m.value, list(m.headers), m.timestamp)
                got.setdefault(tp.partition, []).append((m.offset, record))
                count += 1
    expected.consumed(got)
    ends = {tp: expected.end(tp.partition) for tp in partitions}
    expect(consumer.beginning_offsets(partitions), {tp: 0 for tp in partitions}, "beginning offsets")
    expect(consumer.end_offsets(partitions), ends, "end offsets")
    for at in (BASE_MS, BASE_MS + 100, BASE_MS + 250):
        for tp, found in consumer.offsets_for_times({tp: at for tp in partitions}).items():
            expect(found.offset, expected.offset_for_time(tp.partition, at), f"offset for time {at - BASE_MS}")
    expect(set(consumer.offsets_for_times({tp: BASE_MS * 2 for tp in partitions}).values()), {None}, "offsets past the end")
    consumer.close()

    check(topic in admin.list_topics(), "the topic is not listed")
    expect(len(admin.describe_topics([topic])[0]["partitions"]), PARTITIONS, "described partitions")
    check(len(admin.describe_cluster()["brokers"]) >= 1, "describe cluster")

    def config(name):
        answers = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        entries = {e[0]: e[1] for answer in answers for resource in answer.resources for e in resource[4]}
        return entries[name]

    expect(config("retention.ms"), "-1", "retention.ms as created")
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"segment.bytes": "1048576"})])
    wait_for(lambda: config("segment.bytes") == "1048576", lambda: f"segment.bytes is {config('segment.bytes')}")
    expect(config("retention.ms"), "604800000", "retention.ms after an alter that leaves it out")
    refused = str(admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "soon"})]))
    check("error_code=40" in refused, f"a bad config value was answered with {refused}")
    try:
        admin.create_topics([NewTopic(topic, 1, 1)])
        check(False, "a topic was created twice")
    except TopicAlreadyExistsError:
        pass
    admin.create_partitions({topic: NewPartitions(PARTITIONS + 1)})
    wait_for(lambda: len(admin.describe_topics([topic])[0]["partitions"]) == PARTITIONS + 1, lambda: "the topic did not grow")
    admin.delete_records({partitions[0]: 10}, timeout_ms=20000)
    consumer = KafkaConsumer(bootstrap_servers=bootstrap)
    expect(consumer.beginning_offsets(partitions[:1]), {partitions[0]: 10}, "beginning offset after delete records")
    consumer.close()
    admin.delete_topics([topic], timeout_ms=20000)
    wait_for(lambda: topic not in admin.list_topics(), lambda: "the topic is still there")
    admin.close()


class Member(ConsumerRebalanceListener):
    """A member in a thread of its own: a join waits for the others."""

    def __init__(self, bootstrap, group, topic, seen, name, instance=None):
        self.name, self.seen, self.assigned, self.rebalances = name, seen, set(), 0
        self.error = None
        self.stop = threading.Event()
        self.consumer = KafkaConsumer(bootstrap_servers=bootstrap, group_id=group, group_instance_id=instance,
                                      auto_offset_reset="earliest", enable_auto_commit=False, session_timeout_ms=10000,
                                      heartbeat_interval_ms=300, fetch_max_wait_ms=100, max_poll_records=40)
        self.consumer.subscribe([topic], listener=self)
        self.thread = threading.Thread(target=self.run, name=name, daemon=True)
        self.thread.start()

    def on_partitions_revoked(self, revoked):
        self.assigned = set()

    def on_partitions_assigned(self, assigned):
        self.rebalances += 1
        self.assigned = {tp.partition for tp in assigned}

    def run(self):
        try:
            while not self.stop.is_set():
                batches = self.consumer.poll(100)
                for tp, batch in batches.items():
                    for m in batch:
                        self.seen.add(tp.partition, m.offset, self.name)
                if batches:
                    self.consumer.commit()
            self.consumer.close()
        except BaseException as e:  # handed to the main thread
            self.error = e

    def close(self):
        self.stop.set()
        self.thread.join(TIMEOUT_S)
        check(not self.thread.is_alive(), f"{self.name} did not close")
        self.healthy()

    def healthy(self):
        if self.error is not None:
            raise self.error


def healthy(*members):
    def step():
        for m in members:
            m.healthy()
        time.sleep(0.02)
    return step


def plain(count, start=0):
    return [Record(i % 4, None, b"%d" % i, [], BASE_MS + i) for i in range(start, start + count)]


def group(bootstrap, prefix):
    name = f"{prefix}-kafka-python-group"
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.create_topics([NewTopic(name, 4, 1)], timeout_ms=20000)
    seen = Seen()
    a = Member(bootstrap, name, name, seen, "a")
    b = Member(bootstrap, name, name, seen, "b")
    # Records flow only while the group is stable: a commit that meets a rebalance is refused, and its records come again.
    wait_for(lambda: len(a.assigned) == 2 and len(b.assigned) == 2, lambda: f"assigned {a.assigned} and {b.assigned}", step=healthy(a, b))
    produce(bootstrap, name, plain(200))
    wait_for(lambda: len(seen) == 200, lambda: f"two members: saw {len(seen)} of 200", step=healthy(a, b))
    described = admin.describe_consumer_groups([name])[0]
    expect((described.error_code, described.state, len(described.members)), (0, "Stable", 2), "described group")
    check(name in [g[0] for g in admin.list_consumer_groups()], "the group is not listed")
    b.close()
    wait_for(lambda: len(a.assigned) == 4, lambda: f"after one left: assigned {a.assigned}", step=healthy(a))
    produce(bootstrap, name, plain(100, 200))
    wait_for(lambda: len(seen) == 300, lambda: f"after one left: saw {len(seen)} of 300", step=healthy(a))
    a.close()
    produce(bootstrap, name, plain(100, 300))
    c = Member(bootstrap, name, name, seen, "c")
    wait_for(lambda: len(seen) == 400, lambda: f"resumed: saw {len(seen)} of 400", step=healthy(c))
    c.close()
    partitions = [TopicPartition(name, p) for p in range(4)]
    offsets = admin.list_consumer_group_offsets(name)
    expect({tp: o.offset for tp, o in offsets.items()}, {tp: 100 for tp in partitions}, "committed offsets")
    # Back by three in one partition: a commit from outside the group, as a tool makes it.
    outside = KafkaConsumer(bootstrap_servers=bootstrap, group_id=name, enable_auto_commit=False)
    outside.assign(partitions)
    outside.commit({partitions[1]: OffsetAndMetadata(97, "moved", -1)})
    expect(outside.committed(partitions[1], metadata=True)[:2], (97, "moved"), "committed from outside the group")
    outside.close()
    again = Seen()
    d = Member(bootstrap, name, name, again, "d")
    wait_for(lambda: len(again) == 3, lambda: f"after the reset: saw {again.seen}, expected 3; assigned {d.assigned}, committed "
             f"{ {tp.partition: o.offset for tp, o in admin.list_consumer_group_offsets(name).items()} }", step=healthy(d))
    d.close()
    expect(again.seen, {(1, 97), (1, 98), (1, 99)}, "records after the reset")
    expect(str(admin.delete_consumer_groups([name])), f"[('{name}', <class 'kafka.errors.NoError'>)]", "delete group")
    check(name not in [g[0] for g in admin.list_consumer_groups()], "the group is still listed")

    # Static members: a bounce neither moves the partitions nor disturbs the other.
    static = f"{name}-static"
    seen = Seen()
    outside = KafkaConsumer(bootstrap_servers=bootstrap, group_id=static, enable_auto_commit=False)
    outside.assign(partitions)
    outside.commit({tp: OffsetAndMetadata(100, "", -1) for tp in partitions})
    outside.close()
    a = Member(bootstrap, static, name, seen, "static a", "one")
    b = Member(bootstrap, static, name, seen, "static b", "two")
    wait_for(lambda: len(a.assigned) == 2 and len(b.assigned) == 2,
             lambda: f"static members: assigned {a.assigned} and {b.assigned}", step=healthy(a, b))
    kept, before, theirs = a.assigned, a.rebalances, b.assigned
    b.close()
    b = Member(bootstrap, static, name, seen, "static b again", "two")
    produce(bootstrap, name, plain(40, 400))
    wait_for(lambda: len(seen) == 40 and b.assigned == theirs, lambda: f"static member back: saw {len(seen)}, assigned {b.assigned}",
             step=healthy(a, b))
    expect((a.rebalances, a.assigned), (before, kept), "rebalances of the other member while a static member bounced")
    a.close()
    b.close()
    try:
        admin.delete_topics([name], timeout_ms=20000)
    except KafkaError as e:
        check(False, f"delete topic: {e}")
    admin.close()


if __name__ == "__main__":
    main(globals())
