"""The Java client library and Kafka's command line tools, of the Kafka that --kafka names (kafka-4, kafka-3.7).

basic: the library's round trip. group: the library's, with static members. tools: the command line tools for topics, records,
configs and offsets. compaction: the tools on a compacted topic. group-tools: kafka-consumer-groups and two verifiable consumers.
perf: the performance tools.
"""
import re
import sys
import time

from clientlib import CODECS, Seen, check, expect, main, wait_for
from javatools import OwnProcess, Tools

KAFKA = "kafka-4"
# In a JVM of its own: Kafka 3.7's counts its messages in a static field.
CONSOLE_CONSUMER = {"kafka-4": "org.apache.kafka.tools.consumer.ConsoleConsumer", "kafka-3.7": "kafka.tools.ConsoleConsumer"}


def basic(bootstrap, prefix):
    expect(Tools(KAFKA).ok("java-client", "basic", bootstrap, prefix, timeout_s=120).strip(), "ok", "JavaClient basic")


def group(bootstrap, prefix):
    expect(Tools(KAFKA).ok("java-client", "group", bootstrap, prefix, timeout_s=120).strip(), "ok", "JavaClient group")


def compaction(bootstrap, prefix):
    t = Tools(KAFKA)
    b = ("--bootstrap-server", bootstrap)
    topic = f"{prefix}-{KAFKA}-compacted"
    t.ok("kafka-topics", *b, "--create", "--topic", topic, "--partitions", 1, "--config", "cleanup.policy=compact",
         "--config", "segment.bytes=1048576", "--config", "min.cleanable.dirty.ratio=0.01")
    described = t.ok("kafka-topics", *b, "--describe", "--topic", topic)
    check("cleanup.policy=compact" in described, f"kafka-topics --describe: {described}")
    keyed = ("--property", "parse.key=true")
    sent = [(f"key-{n % 20}", f"{n}-" + "x" * 900) for n in range(5000)]
    t.ok("kafka-console-producer", *b, "--topic", topic, *keyed, "--producer-property", "acks=all",
         stdin="".join(f"{k}\t{v}\n" for k, v in sent))
    newest = dict(sent)

    def read():
        out = t.alone(CONSOLE_CONSUMER[KAFKA], *b, "--topic", topic, "--from-beginning", "--timeout-ms", 4000,
                      "--property", "print.key=true")
        return [line.split("\t") for line in lines(out) if line.startswith("key-")]

    wait_for(lambda: len(read()) < 2500, lambda: f"{len(read())} of 5000 records are still there", timeout_s=60)
    got = read()
    expect(dict(got), newest, "the newest value of each key")
    code, out, err = t.run("kafka-console-producer", *b, "--topic", topic, "--producer-property", "acks=all", stdin="no key\n")
    check("InvalidRecordException" in out + err and "without key" in out + err, f"a record without a key: {code} {out} {err}")


def lines(text):
    return [line.strip() for line in text.splitlines() if line.strip()]


def tools(bootstrap, prefix):
    t = Tools(KAFKA)
    b = ("--bootstrap-server", bootstrap)
    topic = f"{prefix}-{KAFKA}-tools"

    api = t.ok("kafka-broker-api-versions", *b)
    for name in ("Produce(0)", "Fetch(1)", "JoinGroup(11)", "CreateTopics(19)"):
        check(name in api, f"kafka-broker-api-versions has no {name}")
    check(re.search(r"Cluster ID: \S+", t.ok("kafka-cluster", "cluster-id", *b)), "kafka-cluster cluster-id")

    # Topics.
    t.ok("kafka-topics", *b, "--create", "--topic", topic, "--partitions", 2, "--replication-factor", 1, "--config", "retention.ms=86400000")
    code, out, err = t.run("kafka-topics", *b, "--create", "--topic", topic)
    check(code != 0 and "already exists" in out + err, f"second create: {code} {out} {err}")
    t.ok("kafka-topics", *b, "--create", "--topic", topic, "--if-not-exists")
    code, out, err = t.run("kafka-topics", *b, "--create", "--topic", "no/good")
    check(code != 0 and "InvalidTopicException" in out + err, f"bad topic name: {code} {out} {err}")
    check(topic in lines(t.ok("kafka-topics", *b, "--list")), "kafka-topics --list")
    described = t.ok("kafka-topics", *b, "--describe", "--topic", topic)
    check("PartitionCount: 2" in described and "ReplicationFactor: 1" in described and "retention.ms=86400000" in described,
          f"kafka-topics --describe: {described}")
    check(re.search(r"TopicId: [A-Za-z0-9_-]{22}", described), f"topic id: {described}")
    t.ok("kafka-topics", *b, "--alter", "--topic", topic, "--partitions", 3)
    wait_for(lambda: "PartitionCount: 3" in t.ok("kafka-topics", *b, "--describe", "--topic", topic), lambda: "the topic did not grow")
    code, out, err = t.run("kafka-topics", *b, "--alter", "--topic", topic, "--partitions", 1)
    check(code != 0, "the number of partitions was reduced")

    # Records: keys, headers, every compression.
    single = f"{prefix}-{KAFKA}-console"
    t.ok("kafka-topics", *b, "--create", "--topic", single, "--partitions", 1)
    sent = []
    for codec in CODECS:
        batch = [(f"h:{codec},i:{i}", f"key-{i}", f"value-{codec}-{i}-" + "x" * i) for i in range(50)]
        t.ok("kafka-console-producer", *b, "--topic", single, "--compression-codec", codec, "--property", "parse.key=true",
             "--property", "parse.headers=true", "--producer-property", "acks=all",
             stdin="".join(f"{h}\t{k}\t{v}\n" for h, k, v in batch))
        sent += batch
    middle_ms = int(time.time() * 1000) + 5
    time.sleep(0.05)
    t.ok("kafka-console-producer", *b, "--topic", single, "--property", "parse.key=true", "--property", "parse.headers=true",
         stdin="h:late\tkey\tlast\n")
    sent.append(("h:late", "key", "last"))
    read = t.alone(CONSOLE_CONSUMER[KAFKA], *b, "--topic", single, "--from-beginning", "--max-messages", len(sent), "--timeout-ms", 15000,
                "--property", "print.key=true", "--property", "print.headers=true", "--property", "print.offset=true",
                "--property", "print.partition=true")
    got = [line.split("\t") for line in lines(read) if not line.startswith("Option --property is deprecated")]
    expected = [["Partition:0", f"Offset:{o}", h, k, v] for o, (h, k, v) in enumerate(sent)]
    expect(sorted(map(sorted, got)), sorted(map(sorted, expected)), "kafka-console-consumer")
    tail = t.alone(CONSOLE_CONSUMER[KAFKA], *b, "--topic", single, "--partition", 0, "--offset", len(sent) - 2, "--max-messages", 2,
                "--timeout-ms", 15000)
    expect(lines(tail), [sent[-2][2], sent[-1][2]], "kafka-console-consumer --offset")

    # Offsets.
    def offsets(*more):
        return lines(t.ok("kafka-get-offsets", *b, "--topic", single, *more))

    expect(offsets(), [f"{single}:0:{len(sent)}"], "kafka-get-offsets")
    expect(offsets("--time", "earliest"), [f"{single}:0:0"], "kafka-get-offsets --time earliest")
    expect(offsets("--time", "max-timestamp"), [f"{single}:0:{len(sent) - 1}"], "kafka-get-offsets --time max-timestamp")
    expect(offsets("--time", middle_ms), [f"{single}:0:{len(sent) - 1}"], "kafka-get-offsets --time MS")
    request = '{"version": 1, "partitions": [{"topic": "%s", "partition": 0, "offset": 20}]}' % single
    with_file = f"/tmp/{single}.json"
    with open(with_file, "w") as f:
        f.write(request)
    check("low_watermark: 20" in t.ok("kafka-delete-records", *b, "--offset-json-file", with_file), "kafka-delete-records")
    expect(offsets("--time", "-2"), [f"{single}:0:20"], "earliest offset after kafka-delete-records")
    first = t.alone(CONSOLE_CONSUMER[KAFKA], *b, "--topic", single, "--from-beginning", "--max-messages", 1, "--timeout-ms", 15000)
    expect(lines(first), [sent[20][2]], "first record after kafka-delete-records")

    # Configs.
    entity = ("--entity-type", "topics", "--entity-name", topic)

    def config(*more):
        return t.ok("kafka-configs", *b, *entity, "--describe", *more)

    check("retention.ms=86400000" in config(), "kafka-configs --describe")
    check("segment.bytes=1073741824" in config("--all"), "kafka-configs --describe --all")
    t.ok("kafka-configs", *b, *entity, "--alter", "--add-config", "max.message.bytes=2000,message.timestamp.type=LogAppendTime")
    wait_for(lambda: "max.message.bytes=2000" in config() and "message.timestamp.type=LogAppendTime" in config(), lambda: config())
    # Both are in force.
    t.ok("kafka-console-producer", *b, "--topic", topic, stdin="stamped\n")
    stamped = t.alone(CONSOLE_CONSUMER[KAFKA], *b, "--topic", topic, "--from-beginning", "--max-messages", 1, "--timeout-ms", 15000,
                      "--property", "print.timestamp=true")
    check(re.search(r"LogAppendTime:\d+\tstamped", stamped), f"timestamp type: {stamped}")
    code, out, err = t.run("kafka-console-producer", *b, "--topic", topic, "--property", "parse.key=true", stdin="k\t" + "x" * 5000 + "\n")
    check("RecordTooLarge" in out + err, f"a record over max.message.bytes: {code} {out} {err}")
    t.ok("kafka-configs", *b, *entity, "--alter", "--delete-config", "max.message.bytes,message.timestamp.type")
    wait_for(lambda: "max.message.bytes" not in config(), lambda: config())
    code, out, err = t.run("kafka-configs", *b, *entity, "--alter", "--add-config", "retention.ms=soon")
    check(code != 0 and "retention.ms" in out + err, f"bad config value: {code} {out} {err}")
    brokers = t.ok("kafka-configs", *b, "--entity-type", "brokers", "--entity-default", "--describe")
    check("Default configs for brokers" in brokers, f"kafka-configs for brokers: {brokers}")

    # Log directories.
    dirs = t.ok("kafka-log-dirs", *b, "--describe", "--topic-list", single)
    size = re.search(r'"partition":"%s-0","size":(\d+)' % re.escape(single), dirs)
    check(size and int(size.group(1)) > 1000, f"kafka-log-dirs: {dirs}")

    # The verifiable tools.
    verifiable = f"{prefix}-{KAFKA}-verifiable"
    t.ok("kafka-topics", *b, "--create", "--topic", verifiable, "--partitions", 2)
    out = t.alone("org.apache.kafka.tools.VerifiableProducer", *b, "--topic", verifiable, "--max-messages", 1000, "--acks", "-1")
    expect(out.count('"producer_send_success"'), 1000, "acknowledged by kafka-verifiable-producer")
    expect(out.count('"producer_send_error"'), 0, "errors of kafka-verifiable-producer")
    out = t.alone("org.apache.kafka.tools.VerifiableConsumer", *b, "--topic", verifiable, "--group-id", verifiable,
                  "--max-messages", 1000, "--reset-policy", "earliest", "--verbose")
    values = sorted(int(v) for v in re.findall(r'"value":"(\d+)"', out))
    expect(values, list(range(1000)), "values of kafka-verifiable-consumer")

    for name in (topic, single, verifiable):
        t.ok("kafka-topics", *b, "--delete", "--topic", name)
    wait_for(lambda: not set(lines(t.ok("kafka-topics", *b, "--list"))) & {topic, single, verifiable}, lambda: "topics are still there")
    t.close()


class VerifiableConsumer(OwnProcess):
    """kafka-verifiable-consumer in a process of its own: a real member that comes and goes."""

    def __init__(self, bootstrap, topic, group, seen, name):
        super().__init__(KAFKA, "org.apache.kafka.tools.VerifiableConsumer", "--bootstrap-server", bootstrap, "--topic", topic,
                         "--group-id", group, "--reset-policy", "earliest", "--verbose", "--session-timeout", 10000)
        self.name, self.seen, self.assigned = name, seen, set()

    def step(self):
        for e in super().step():
            if e["name"] == "record_data":
                self.seen.add(e["partition"], e["offset"], self.name)
            elif e["name"] == "partitions_assigned":
                self.assigned |= {p["partition"] for p in e["partitions"]}
            elif e["name"] == "partitions_revoked":
                self.assigned -= {p["partition"] for p in e["partitions"]}
            elif e["name"] == "offsets_committed":
                check(e["success"], f"{self.name}: commit failed: {e}")


def group_tools(bootstrap, prefix):
    t = Tools(KAFKA)
    b = ("--bootstrap-server", bootstrap)
    name = f"{prefix}-{KAFKA}-groups"
    t.ok("kafka-topics", *b, "--create", "--topic", name, "--partitions", 4)
    seen = Seen()
    a = VerifiableConsumer(bootstrap, name, name, seen, "a")
    c = VerifiableConsumer(bootstrap, name, name, seen, "b")

    def both():
        a.step()
        c.step()

    def groups(*more, code=0):
        got, out, err = t.run("kafka-consumer-groups", *b, *more)
        expect(got, code, f"kafka-consumer-groups {' '.join(map(str, more))}: {out[-500:]} {err[-500:]}")
        return out + err

    def produce(count):
        out = t.alone("org.apache.kafka.tools.VerifiableProducer", *b, "--topic", name, "--max-messages", count, "--acks", "-1",
                      "--repeating-keys", 40)
        expect(out.count('"producer_send_success"'), count, "acknowledged by kafka-verifiable-producer")

    def described():
        """{partition: (committed offset, log end offset, lag)}"""
        rows = [line.split() for line in lines(groups("--describe", "--group", name))]
        return {int(r[2]): tuple(int(x) if x != "-" else None for x in r[3:6]) for r in rows if len(r) > 5 and r[0] == name and r[1] == name}

    try:
        wait_for(lambda: len(a.assigned) == 2 and len(c.assigned) == 2, lambda: f"assigned {a.assigned} and {c.assigned} {a.noise}", step=both)
        produce(400)
        wait_for(lambda: len(seen) == 400, lambda: f"two members: saw {len(seen)} of 400", step=both)
        check(name in lines(groups("--list")), "kafka-consumer-groups --list")
        members = groups("--describe", "--group", name, "--members", "--verbose")
        expect(len(re.findall(r"^%s\s" % re.escape(name), members, re.M)), 2, f"members: {members}")
        state = groups("--describe", "--group", name, "--state")
        check("Stable" in state and " 2" in state, f"state: {state}")
        refused = t.run("kafka-consumer-groups", *b, "--delete", "--group", name)
        check("GroupNotEmptyException" in refused[1] + refused[2], f"delete of a group in use: {refused}")
        check(name in lines(groups("--list")), "a group in use was deleted")
        c.terminate()
        wait_for(lambda: len(a.assigned) == 4, lambda: f"after one left: assigned {a.assigned}", step=a.step)
        produce(100)
        wait_for(lambda: len(seen) == 500, lambda: f"after one left: saw {len(seen)} of 500", step=a.step)
        wait_for(lambda: sum((o[2] or 0) for o in described().values()) == 0 and len(described()) == 4, lambda: f"lag: {described()}", step=a.step)
        a.terminate()
        produce(100)
        c = VerifiableConsumer(bootstrap, name, name, seen, "c")
        wait_for(lambda: len(seen) == 600, lambda: f"resumed: saw {len(seen)} of 600", step=c.step)
        c.terminate()
    finally:
        a.kill()
        c.kill()
    check("no active members" in groups("--describe", "--group", name), "an empty group's description")
    ends = {p: o[1] for p, o in described().items()}
    expect(sum(ends.values()), 600, f"log end offsets {ends}")
    expect({p: o[0] for p, o in described().items()}, ends, "committed offsets of the empty group")

    # Offset reset, in every way that the tool has.
    reset = ("--reset-offsets", "--group", name, "--topic", name)
    groups(*reset, "--to-earliest", "--dry-run")
    expect({p: o[0] for p, o in described().items()}, ends, "offsets after a dry run")
    groups(*reset, "--to-earliest", "--execute")
    expect({p: o[0] for p, o in described().items()}, {p: 0 for p in ends}, "offsets after --to-earliest")
    groups(*reset, "--shift-by", 7, "--execute")
    expect({p: o[0] for p, o in described().items()}, {p: 7 for p in ends}, "offsets after --shift-by 7")
    groups(*reset, "--to-datetime", "2020-01-01T00:00:00.000", "--execute")
    expect({p: o[0] for p, o in described().items()}, {p: 0 for p in ends}, "offsets after --to-datetime")
    groups(*reset, "--to-latest", "--execute")
    expect({p: o[0] for p, o in described().items()}, ends, "offsets after --to-latest")
    groups("--reset-offsets", "--group", name, "--topic", f"{name}:1", "--to-offset", 3, "--execute")
    expect(described()[1][0], 3, "offset after --to-offset 3")
    again = Seen()
    d = VerifiableConsumer(bootstrap, name, name, again, "d")
    try:
        wait_for(lambda: len(again) == ends[1] - 3, lambda: f"after the reset: saw {len(again)} of {ends[1] - 3}", step=d.step)
        expect({p for p, _ in again.seen}, {1}, "partitions with records after the reset")
        d.terminate()
    finally:
        d.kill()
    groups("--delete-offsets", "--group", name, "--topic", f"{name}:2")
    check(described().get(2, (None,))[0] is None, f"the deleted offset is still there: {described()}")
    groups("--delete", "--group", name)
    check(name not in lines(groups("--list")), "the group is still listed")
    t.ok("kafka-topics", *b, "--delete", "--topic", name)
    t.close()


def perf(bootstrap, prefix):
    t = Tools(KAFKA)
    topic = f"{prefix}-{KAFKA}-perf"
    count = 20000
    t.ok("kafka-topics", "--bootstrap-server", bootstrap, "--create", "--topic", topic, "--partitions", 4)
    out = t.ok("kafka-producer-perf-test", "--topic", topic, "--num-records", count, "--record-size", 512, "--throughput", -1,
               "--producer-props", f"bootstrap.servers={bootstrap}", "acks=all", "compression.type=lz4", timeout_s=90)
    check(f"{count} records sent" in out, f"kafka-producer-perf-test: {out}")
    out = t.ok("kafka-get-offsets", "--bootstrap-server", bootstrap, "--topic", topic)
    expect(sum(int(line.rsplit(":", 1)[1]) for line in lines(out)), count, "offsets after kafka-producer-perf-test")
    out = t.ok("kafka-consumer-perf-test", "--bootstrap-server", bootstrap, "--topic", topic,
               "--messages" if KAFKA == "kafka-3.7" else "--num-records", count, "--group", topic, "--timeout", 30000, timeout_s=90)
    row = lines(out)[-1].split(",")
    expect(int(row[4]), count, f"records of kafka-consumer-perf-test: {out}")
    t.ok("kafka-topics", "--bootstrap-server", bootstrap, "--delete", "--topic", topic)
    t.close()


if __name__ == "__main__":
    at = sys.argv.index("--kafka")
    KAFKA = sys.argv[at + 1]
    del sys.argv[at:at + 2]
    main({"basic": basic, "group": group, "tools": tools, "compaction": compaction, "group-tools": group_tools, "perf": perf})
