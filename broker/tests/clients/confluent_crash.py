"""confluent-kafka (librdkafka) under a broker that dies again and again: an idempotent producer and a consumer in a group that
commits. Runs until standard input ends, then flushes and ends.

It writes a line for each promise, and judges nothing:
    acknowledged PARTITION OFFSET NUMBER     a delivery report
    consumed PARTITION OFFSET VALUE          a record that the consumer got
    committed PARTITION OFFSET               a commit that was acknowledged
"""
import argparse
import sys
import threading
import time

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

MASK = (1 << 64) - 1
FLUSH_S = 60
# A group's members may not outlive the session of the broker that died by much, or the test waits for them.
SESSION_MS = 6000


class Random:
    """SplitMix64, as in the judge: a value proves that it is whole."""

    def __init__(self, seed):
        self.state = seed & MASK

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)


def value(producer, partition, n):
    filler = Random((producer << 48) ^ (partition << 40) ^ n)
    words = filler.next() % 12
    return f"{producer}.{partition}.{n}|".encode() + b"".join(filler.next().to_bytes(8, "little") for _ in range(words))


lock = threading.Lock()


def say(*words):
    with lock:
        print(*words, flush=True)


def produce(args, stop):
    producer = Producer({"bootstrap.servers": args.bootstrap, "enable.idempotence": True, "acks": "all", "linger.ms": 2,
                         "message.timeout.ms": 300_000, "reconnect.backoff.max.ms": 200, "retry.backoff.ms": 20,
                         "retry.backoff.max.ms": 100, "topic.metadata.refresh.fast.interval.ms": 50})

    def delivered(partition, n):
        def callback(error, message):
            if error is not None:
                raise SystemExit(f"number {n} of partition {partition} was given up: {error}")
            say("acknowledged", partition, message.offset(), n)
        return callback

    n = 0
    while not stop.is_set():
        for partition in range(args.partitions):
            try:
                producer.produce(args.topic, value(args.producer, partition, n), partition=partition,
                                 on_delivery=delivered(partition, n))
            except BufferError:
                producer.poll(0.1)
                break
        else:
            n += 1
            producer.poll(0.002)
    left = producer.flush(FLUSH_S)
    if left:
        raise SystemExit(f"{left} messages could not be flushed")


def consume(args, stop):
    consumer = Consumer({"bootstrap.servers": args.bootstrap, "group.id": args.group, "auto.offset.reset": "earliest",
                         "enable.auto.commit": False, "session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": 500,
                         "reconnect.backoff.max.ms": 200, "fetch.wait.max.ms": 50, "check.crcs": True})
    consumer.subscribe([args.topic])
    while not stop.is_set():
        positions = {}
        for message in consumer.consume(200, 0.2):
            if message.error() is not None:
                # The broker is away; librdkafka goes on by itself.
                continue
            say("consumed", message.partition(), message.offset(), message.value().hex())
            positions[message.partition()] = message.offset() + 1
        offsets = [TopicPartition(args.topic, partition, offset) for partition, offset in positions.items()]
        if not offsets:
            continue
        try:
            for done in consumer.commit(offsets=offsets, asynchronous=False):
                if done.error is None:
                    say("committed", done.partition, done.offset)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.OFFSET_OUT_OF_RANGE:
                raise
    consumer.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--producer", type=int, required=True)
    parser.add_argument("--group", required=True)
    args = parser.parse_args()
    stop = threading.Event()
    failures = []

    def guarded(work):
        try:
            work(args, stop)
        except BaseException as failure:  # a thread's end must not go unseen
            failures.append(failure)
            stop.set()

    threads = [threading.Thread(target=guarded, args=(work,)) for work in (produce, consume)]
    for thread in threads:
        thread.start()
    ended = threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True)
    ended.start()
    while not stop.is_set():
        time.sleep(0.05)
    for thread in threads:
        thread.join()
    if failures:
        sys.exit(f"failed: {failures[0]!r}")


if __name__ == "__main__":
    main()
