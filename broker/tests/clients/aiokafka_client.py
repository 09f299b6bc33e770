"""aiokafka: basic and group round trip."""
import asyncio
import time

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from clientlib import BASE_MS, CODECS, PARTITIONS, Expected, Record, Seen, check, expect, main, records

TIMEOUT_S = 30


async def wait_for(condition, what, members=(), timeout_s=40):
    deadline = time.monotonic() + timeout_s
    while not condition():
        for m in members:
            m.healthy()
        check(time.monotonic() < deadline, f"not within {timeout_s} s: {what()}")
        await asyncio.sleep(0.02)


def no_error(response, what):
    """Admin answers come raw: any error code in them is a failure."""
    for _, code, *rest in getattr(response, "topic_errors", None) or getattr(response, "topic_error_codes", None) or []:
        expect(code, 0, f"{what}: error code ({rest})")


async def produce(bootstrap, topic, batch, expected=None, codec="none", idempotent=True):
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=5, request_timeout_ms=20000,
                                compression_type=None if codec == "none" else codec, enable_idempotence=idempotent)
    await producer.start()
    try:
        futures = []
        for r in batch:
            futures.append((r, await producer.send(topic, value=r.value, key=r.key, partition=r.partition,
                                                   headers=r.headers, timestamp_ms=r.timestamp_ms)))
        for r, future in futures:
            metadata = await asyncio.wait_for(future, TIMEOUT_S)
            if expected is not None:
                expected.acknowledged(r, metadata.offset)
    finally:
        await producer.stop()


async def basic_async(bootstrap, prefix):
    topic = f"{prefix}-aiokafka-basic"
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    no_error(await admin.create_topics([NewTopic(topic, PARTITIONS, 1, topic_configs={"retention.ms": "-1"})], timeout_ms=20000), "create")
    expected = Expected()
    for n, codec in enumerate(CODECS):
        await produce(bootstrap, topic, records(codec, n * 60), expected, codec, idempotent=n % 2 == 0)
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False, fetch_max_wait_ms=100)
    await consumer.start()
    partitions = [TopicPartition(topic, p) for p in range(PARTITIONS)]
    consumer.assign(partitions)
    await consumer.seek_to_beginning(*partitions)
    got, count, deadline = {}, 0, time.monotonic() + TIMEOUT_S
    while count < expected.total() and time.monotonic() < deadline:
        for tp, batch in (await consumer.getmany(timeout_ms=500)).items():
            for m in batch:
                record = Record(tp.partition, m.key, m.value, list(m.headers), m.timestamp)
                got.setdefault(tp.partition, []).append((m.offset, record))
                count += 1
    expected.consumed(got)
    expect(await consumer.beginning_offsets(partitions), {tp: 0 for tp in partitions}, "beginning offsets")
    expect(await consumer.end_offsets(partitions), {tp: expected.end(tp.partition) for tp in partitions}, "end offsets")
    for at in (BASE_MS, BASE_MS + 100, BASE_MS + 250):
        for tp, found in (await consumer.offsets_for_times({tp: at for tp in partitions})).items():
            expect(found.offset, expected.offset_for_time(tp.partition, at), f"offset for time {at - BASE_MS}")
    await consumer.stop()

    async def config(name):
        responses = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        entries = {e[0]: e[1] for response in responses for resource in response.resources for e in resource[4]}
        return entries[name]

    expect(await config("retention.ms"), "-1", "retention.ms as created")
    await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"segment.bytes": "1048576"})])
    deadline = time.monotonic() + TIMEOUT_S
    while await config("segment.bytes") != "1048576":
        check(time.monotonic() < deadline, "segment.bytes did not change")
        await asyncio.sleep(0.05)
    expect(await config("retention.ms"), "604800000", "retention.ms after a non-incremental alter that leaves it out")
    await admin.create_partitions({topic: NewPartitions(PARTITIONS + 1)})
    described = await admin.describe_topics([topic])
    expect(len(described[0]["partitions"]), PARTITIONS + 1, "partitions after the topic grew")
    expect(await admin.delete_records({partitions[0]: RecordsToDelete(before_offset=10)}, timeout_ms=20000), {partitions[0]: 10},
           "low watermarks after delete records")
    check((await admin.describe_cluster())["brokers"], "describe cluster")
    no_error(await admin.delete_topics([topic], timeout_ms=20000), "delete")
    await wait_gone(admin, topic)
    await admin.close()


async def wait_gone(admin, topic):
    deadline = time.monotonic() + TIMEOUT_S
    while topic in await admin.list_topics():
        check(time.monotonic() < deadline, "the topic is still there")
        await asyncio.sleep(0.05)


class Member(ConsumerRebalanceListener):
    def __init__(self, name, seen):
        self.name, self.seen, self.assigned, self.rebalances, self.task = name, seen, set(), 0, None

    async def start(self, bootstrap, group, topic, instance=None):
        self.consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=group, group_instance_id=instance,
                                         auto_offset_reset="earliest", enable_auto_commit=False, session_timeout_ms=10000,
                                         heartbeat_interval_ms=300, fetch_max_wait_ms=100)
        self.consumer.subscribe([topic], listener=self)
        self.running = True
        self.task = asyncio.create_task(self.run())
        return self

    async def on_partitions_revoked(self, revoked):
        self.assigned = set()

    async def on_partitions_assigned(self, assigned):
        self.rebalances += 1
        self.assigned = {tp.partition for tp in assigned}

    async def run(self):
        await self.consumer.start()
        try:
            while self.running:
                batches = await self.consumer.getmany(timeout_ms=100, max_records=40)
                for tp, batch in batches.items():
                    for m in batch:
                        self.seen.add(tp.partition, m.offset, self.name)
                if batches:
                    await self.consumer.commit({tp: batch[-1].offset + 1 for tp, batch in batches.items()})
        finally:
            await self.consumer.stop()

    def healthy(self):
        if self.task.done():
            self.task.result()

    async def stop(self):
        self.running = False
        await asyncio.wait_for(self.task, TIMEOUT_S)


def plain(count, start=0):
    return [Record(i % 4, None, b"%d" % i, [], BASE_MS + i) for i in range(start, start + count)]


async def group_async(bootstrap, prefix):
    name = f"{prefix}-aiokafka-group"
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    no_error(await admin.create_topics([NewTopic(name, 4, 1)], timeout_ms=20000), "create")
    seen = Seen()
    a = await Member("a", seen).start(bootstrap, name, name)
    b = await Member("b", seen).start(bootstrap, name, name)
    # Records flow only while the group is stable: a commit that meets a rebalance is refused, and its records come again.
    await wait_for(lambda: len(a.assigned) == 2 and len(b.assigned) == 2, lambda: f"assigned {a.assigned} and {b.assigned}", [a, b])
    await produce(bootstrap, name, plain(200))
    await wait_for(lambda: len(seen) == 200, lambda: f"two members: saw {len(seen)} of 200", [a, b])
    described = (await admin.describe_consumer_groups([name]))[0].groups[0]
    expect((described[0], described[1], described[2], len(described[5])), (0, name, "Stable", 2), "described group")
    check(name in [g[0] for g in await admin.list_consumer_groups()], "the group is not listed")
    await b.stop()
    await wait_for(lambda: len(a.assigned) == 4, lambda: f"after one left: assigned {a.assigned}", [a])
    await produce(bootstrap, name, plain(100, 200))
    await wait_for(lambda: len(seen) == 300, lambda: f"after one left: saw {len(seen)} of 300", [a])
    await a.stop()
    await produce(bootstrap, name, plain(100, 300))
    c = await Member("c", seen).start(bootstrap, name, name)
    await wait_for(lambda: len(seen) == 400, lambda: f"resumed: saw {len(seen)} of 400", [c])
    await c.stop()
    offsets = await admin.list_consumer_group_offsets(name)
    expect({tp.partition: o.offset for tp, o in offsets.items()}, {p: 100 for p in range(4)}, "committed offsets")

    static = f"{name}-static"
    seen = Seen()
    a = await Member("static a", seen).start(bootstrap, static, name, "one")
    b = await Member("static b", seen).start(bootstrap, static, name, "two")
    await wait_for(lambda: len(a.assigned) == 2 and len(b.assigned) == 2,
                   lambda: f"static members: assigned {a.assigned} and {b.assigned}", [a, b])
    kept, before, theirs = a.assigned, a.rebalances, b.assigned
    await b.stop()
    b = await Member("static b again", seen).start(bootstrap, static, name, "two")
    await wait_for(lambda: b.assigned == theirs, lambda: f"static member back: assigned {b.assigned}", [a, b])
    members = (await admin.describe_consumer_groups([static]))[0].groups[0][5]
    expect(len(members), 2, "static members")
    expect((a.rebalances, a.assigned), (before, kept), "rebalances of the other member while a static member bounced")
    await a.stop()
    await b.stop()
    no_error(await admin.delete_topics([name], timeout_ms=20000), "delete")
    await wait_gone(admin, name)
    await admin.close()


def basic(bootstrap, prefix):
    asyncio.run(basic_async(bootstrap, prefix))


def group(bootstrap, prefix):
    asyncio.run(group_async(bootstrap, prefix))


if __name__ == "__main__":
    main(globals())
