#!/usr/bin/env python3
"""What many partitions cost a kaas broker: memory, CPU while nothing happens, start with 1,000 of them, 100 written at once.

Starts the given binary on a fresh directory, on loopback. Needs what broker/tests/clients/install installs.
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from compare import KaasBroker, cpu_seconds, free_port, rss_mib
from kafka_broker import cache_dir


def produce_to_each(bootstrap, topic, partitions, bytes_each=100):
    """One acknowledged record to every partition; seconds."""
    from confluent_kafka import Producer
    failed = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 50, "queue.buffering.max.messages": 1_000_000})
    start = time.monotonic()
    for partition in range(partitions):
        producer.produce(topic, b"x" * bytes_each, partition=partition, on_delivery=lambda error, _: error and failed.append(error))
        producer.poll(0)
    left = producer.flush(300)
    if left or failed:
        sys.exit(f"{left} records unanswered, {len(failed)} refused: {failed[:1]}")
    return time.monotonic() - start


def create(bootstrap, topic, partitions):
    from confluent_kafka.admin import AdminClient, NewTopic
    start = time.monotonic()
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)], operation_timeout=120, request_timeout=120)[topic].result(150)
    return time.monotonic() - start


def idle(broker, seconds):
    """CPU seconds a second while nothing happens, and the resident set."""
    time.sleep(2)
    before = cpu_seconds(broker.pid)
    time.sleep(seconds)
    return {"cpu_share": (cpu_seconds(broker.pid) - before) / seconds, "rss_mib": rss_mib(broker.pid)}


def restart_to_first_record(binary, broker, topic):
    """Seconds from the start of the process to the first acknowledged record."""
    broker.stop()
    load = pathlib.Path(__file__).resolve().parent / "load.py"
    port = free_port()
    first = subprocess.Popen([sys.executable, str(load), "first", f"127.0.0.1:{port}", topic, "60"], stdout=subprocess.PIPE, text=True)
    time.sleep(1.0)
    again = KaasBroker(binary, broker.data_dir, port)
    out, _ = first.communicate(timeout=90)
    return again, json.loads(out.splitlines()[-1])["acknowledged_at"] - again.started


def written_at_once(bootstrap, topic, partitions, records, record_bytes):
    """Records a second over all partitions, each acknowledged by acks=all."""
    from confluent_kafka import Producer
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5, "queue.buffering.max.kbytes": 262_144})
    value, start = os.urandom(record_bytes), time.monotonic()
    for number in range(records):
        while True:
            try:
                producer.produce(topic, value, partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.05)
        producer.poll(0)
    if producer.flush(300):
        sys.exit("records were left unanswered")
    return records / (time.monotonic() - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kaas", required=True, help="the kaas binary (release build)")
    parser.add_argument("--partitions", type=int, default=8_000,
                        help="an open one takes two file descriptors of the limit (ulimit -Hn)")
    parser.add_argument("--idle-seconds", type=float, default=20)
    parser.add_argument("--records", type=int, default=200_000, help="records of 1 KiB for the 100 partitions")
    parser.add_argument("--data-root", default=None, help="folder on the disk to measure")
    arguments = parser.parse_args()
    binary = str(pathlib.Path(arguments.kaas).resolve(strict=True))
    root = pathlib.Path(tempfile.mkdtemp(prefix="kaas-partitions-", dir=arguments.data_root))
    figures = {}
    broker = KaasBroker(binary, root / "data").wait_ready()
    try:
        figures["empty"] = idle(broker, arguments.idle_seconds)
        figures["create_s"] = create(broker.bootstrap, "many", arguments.partitions)
        figures["created_not_used"] = idle(broker, arguments.idle_seconds)
        figures["one_record_each_s"] = produce_to_each(broker.bootstrap, "many", arguments.partitions)
        figures["open_and_idle"] = idle(broker, arguments.idle_seconds)
        create(broker.bootstrap, "hundred", 100)
        before = cpu_seconds(broker.pid)
        figures["hundred_records_s"] = written_at_once(broker.bootstrap, "hundred", 100, arguments.records, 1024)
        figures["hundred_cpu_s_per_gb"] = (cpu_seconds(broker.pid) - before) / (arguments.records * 1024 / 1e9)
        figures["hundred_rss_mib"] = rss_mib(broker.pid)
        create(broker.bootstrap, "thousand", 1000)
        broker, figures["restart_to_first_record_s"] = restart_to_first_record(binary, broker, "thousand")
    finally:
        broker.stop()
        shutil.rmtree(root, ignore_errors=True)
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    try:
        import confluent_kafka  # noqa: F401
    except ImportError:
        python = cache_dir() / "python" / "bin" / "python"
        if not python.exists() or sys.executable == str(python):
            sys.exit("the test clients are not installed: run ./test, or broker/tests/clients/install")
        os.execv(python, [str(python), *sys.argv])
    main()
