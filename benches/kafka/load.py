"""Load through librdkafka (confluent-kafka), one run a process, its result as one line of JSON. Called by compare.py.

  load.py produce BOOTSTRAP TOPIC PARTITIONS RECORDS BYTES [SETTING=VALUE...]    as fast as acknowledgements allow, acks=all
  load.py consume BOOTSTRAP TOPIC PARTITIONS RECORDS                             from the beginning, to the last
  load.py latency BOOTSTRAP TOPIC PER_SECOND SECONDS BYTES                       from produce() to poll(), one process, one clock
  load.py first BOOTSTRAP TOPIC LIMIT_S                                          until the first acknowledged record, however often it takes
"""
import json
import os
import sys
import threading
import time

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, Producer, TopicPartition

LIMIT_S = 300


def produce(bootstrap, topic, partitions, records, size, *settings):
    partitions, records, size = int(partitions), int(records), int(size)
    failed = []
    # The settings of a producer that wants throughput; they are the same for every broker that is compared.
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5, "batch.size": 1_000_000,
                         "batch.num.messages": 100_000, "queue.buffering.max.messages": 200_000, "queue.buffering.max.kbytes": 262_144,
                         **dict(s.split("=", 1) for s in settings)})
    payload = os.urandom(size)

    def delivered(error, _):
        if error is not None:
            failed.append(str(error))

    producer.list_topics(topic, 30)
    begin = time.monotonic()
    for i in range(records):
        while True:
            try:
                producer.produce(topic, payload, partition=i % partitions, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.01)
        if i % 200 == 0:
            producer.poll(0)
    left = producer.flush(LIMIT_S)
    seconds = time.monotonic() - begin
    if left or failed:
        sys.exit(f"{left} records left, {len(failed)} failed: {failed[:1]}")
    return {"seconds": seconds, "records": records, "mb_s": records * size / seconds / 1e6, "records_s": records / seconds}


def consume(bootstrap, topic, partitions, records):
    partitions, records = int(partitions), int(records)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"load-{topic}", "enable.auto.commit": False,
                         "queued.max.messages.kbytes": 65536, "fetch.max.bytes": 52_428_800, "max.partition.fetch.bytes": 4_194_304})
    consumer.list_topics(topic, 30)
    begin = time.monotonic()
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(partitions)])
    count = size = 0
    while count < records:
        # Never more than are left: the call waits for as many as it was asked for.
        batch = consumer.consume(min(10_000, records - count), 5)
        if not batch and time.monotonic() - begin > LIMIT_S:
            sys.exit(f"consumed {count} of {records} records")
        for m in batch:
            if m.error() is not None:
                sys.exit(str(m.error()))
            size += len(m)
        count += len(batch)
    seconds = time.monotonic() - begin
    consumer.close()
    return {"seconds": seconds, "records": count, "mb_s": size / seconds / 1e6, "records_s": count / seconds}


def latency(bootstrap, topic, per_second, seconds, size):
    per_second, seconds, size = int(per_second), float(seconds), int(size)
    total, warm = int(per_second * (seconds + 2)), per_second * 2
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"load-{topic}", "enable.auto.commit": False, "fetch.wait.max.ms": 500})
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
    producer.list_topics(topic, 30)
    consumer.assign([TopicPartition(topic, 0, OFFSET_END)])
    consumer.poll(1)
    padding = b"x" * (size - 20)

    def send():
        begin = time.monotonic_ns()
        for i in range(total):
            due = begin + i * 1_000_000_000 // per_second
            while (now := time.monotonic_ns()) < due:
                time.sleep((due - now) / 1e9)
            # The clock starts when the record was due, so that a stalled sender does not hide its own delay.
            producer.produce(topic, b"%020d" % due + padding, partition=0)
            producer.poll(0)
        producer.flush(30)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    taken, limit = [], time.monotonic() + seconds + 40
    while len(taken) < total and time.monotonic() < limit:
        m = consumer.poll(0.5)
        if m is None:
            continue
        if m.error() is not None:
            sys.exit(str(m.error()))
        taken.append(time.monotonic_ns() - int(m.value()[:20]))
    if len(taken) < total:
        sys.exit(f"received {len(taken)} of {total} records")
    measured = sorted(taken[warm:])
    consumer.close()

    def at(q):
        return measured[min(len(measured) - 1, int(q * len(measured)))] / 1e6

    return {"records": len(measured), "p50_ms": at(0.5), "p99_ms": at(0.99), "p999_ms": at(0.999), "max_ms": measured[-1] / 1e6}


def first(bootstrap, topic, limit_s):
    done = threading.Event()
    begin = time.monotonic()
    # Connection attempts in quick succession: the time measured is the broker's, not the back-off's.
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "reconnect.backoff.ms": 5,
                         "reconnect.backoff.max.ms": 10, "retry.backoff.ms": 5, "retry.backoff.max.ms": 10, "log_level": 0,
                         "topic.metadata.refresh.fast.interval.ms": 5, "topic.metadata.propagation.max.ms": 60000})
    result = []

    def delivered(error, _):
        result.append(error)
        done.set()

    producer.produce(topic, b"first", on_delivery=delivered)
    while not done.is_set() and time.monotonic() - begin < float(limit_s):
        producer.poll(0.001)
    if not result or result[0] is not None:
        sys.exit(f"no record was acknowledged within {limit_s} s: {result}")
    return {"acknowledged_at": time.monotonic()}


if __name__ == "__main__":
    print(json.dumps({"produce": produce, "consume": consume, "latency": latency, "first": first}[sys.argv[1]](*sys.argv[2:])))
