import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * What the test of `kaas-engine import` does as a client: fills a Kafka with all sorts of logs, and writes down everything that a
 * consumer can find out about them. ImportData begin BOOTSTRAP | inherit BOOTSTRAP | leave BOOTSTRAP | end BOOTSTRAP FILE | hold BOOTSTRAP |
 * compare BOOTSTRAP FILE
 */
public final class ImportData {
    private static final List<String> CODECS = List.of("none", "gzip", "snappy", "lz4", "zstd");
    private static final long BASE_MS = 1_700_000_000_000L;
    private final String bootstrap;

    private ImportData(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    public static void main(String[] args) throws Exception {
        ImportData data = new ImportData(args[1]);
        switch (args[0]) {
            case "begin" -> {
                data.create();
                data.produce(0);
            }
            case "inherit" -> data.inherit();
            case "leave" -> {
                data.produce(400);
                data.leaveOpen();
            }
            case "end" -> {
                data.awaitEnd();
                data.read(args[2]);
            }
            case "hold" -> data.hold();
            case "compare" -> {
                data.read(args[2]);
                data.goOn();
            }
            default -> throw new IllegalArgumentException(args[0]);
        }
        System.out.println("ok");
        System.exit(0);
    }

    private Admin admin() {
        return Admin.create(Map.of("bootstrap.servers", bootstrap));
    }

    private KafkaProducer<byte[], byte[]> producer(Map<String, Object> more) {
        Map<String, Object> configs = new HashMap<>(Map.of("bootstrap.servers", bootstrap, "linger.ms", 5, "batch.size", 2000));
        configs.putAll(more);
        return new KafkaProducer<>(configs, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static ProducerRecord<byte[], byte[]> record(String topic, int partition, int n, int keys) {
        byte[] value = n % 13 == 5 ? null : bytes("value-" + n + "-" + "x".repeat(n % 97));
        byte[] key = keys == 0 && n % 7 == 0 ? null : bytes("key-" + (keys == 0 ? n : n % keys));
        List<Header> headers = n % 3 == 0 ? List.of(new RecordHeader("h", bytes("" + n)), new RecordHeader("null", null)) : List.of();
        return new ProducerRecord<>(topic, partition, BASE_MS + n * 10L, key, value, headers);
    }

    private void create() throws Exception {
        try (Admin admin = admin()) {
            List<NewTopic> topics = new ArrayList<>();
            Map<String, String> small = Map.of("segment.ms", "600", "index.interval.bytes", "512", "retention.ms", "-1");
            for (String codec : CODECS) {
                topics.add(new NewTopic("codec-" + codec, 2, (short) 1).configs(small));
            }
            topics.add(new NewTopic("transactions", 1, (short) 1).configs(small));
            topics.add(new NewTopic("trimmed", 1, (short) 1).configs(small));
            // Of the topics that only delete, this one has lost its first segments by retention, and no DeleteRecords.
            Map<String, String> retained = new HashMap<>(small);
            retained.put("retention.bytes", "8000");
            topics.add(new NewTopic("retained", 1, (short) 1).configs(retained));
            topics.add(new NewTopic("left", 1, (short) 1).configs(small));
            topics.add(new NewTopic("held", 1, (short) 1).configs(small));
            topics.add(new NewTopic("empty", 3, (short) 1).configs(Map.of("retention.ms", "-1")));
            Map<String, String> compacted = new HashMap<>(small);
            compacted.putAll(Map.of("cleanup.policy", "compact", "min.cleanable.dirty.ratio", "0.01", "segment.ms", "300",
                "max.message.bytes", "123456"));
            topics.add(new NewTopic("compacted", 1, (short) 1).configs(compacted));
            admin.createTopics(topics).all().get();
            // An answer comes from leaders only: a producer's first batch must not come before its partition has one.
            Map<TopicPartition, OffsetSpec> all = new HashMap<>();
            for (NewTopic topic : topics) {
                for (int p = 0; p < topic.numPartitions(); p++) {
                    all.put(new TopicPartition(topic.name(), p), OffsetSpec.latest());
                }
            }
            admin.listOffsets(all).all().get();
        }
    }

    /** Topics that have configs of the broker, static ones and these dynamic ones. */
    private void inherit() throws Exception {
        try (Admin admin = admin()) {
            Map<ConfigResource, Collection<AlterConfigOp>> defaults = Map.of(
                new ConfigResource(ConfigResource.Type.BROKER, ""),
                List.of(set("log.retention.ms", "123456789"), set("message.max.bytes", "1500000"), set("compression.type", "zstd")),
                new ConfigResource(ConfigResource.Type.BROKER, "1"), List.of(set("log.retention.ms", "223456789")));
            admin.incrementalAlterConfigs(defaults).all().get();
            NewTopic own = new NewTopic("own", 1, (short) 1).configs(Map.of("cleanup.policy", "delete", "retention.ms", "-1"));
            admin.createTopics(List.of(new NewTopic("inherits", 1, (short) 1), own)).all().get();
        }
        try (KafkaProducer<byte[], byte[]> producer = producer(Map.of())) {
            for (int n = 0; n < 400; n++) {
                long time = System.currentTimeMillis() - 3_600_000 + n * 20L;
                for (String topic : List.of("inherits", "own")) {
                    producer.send(new ProducerRecord<>(topic, 0, time, bytes("key-" + n % 20), bytes("value-" + n)));
                }
                if (n % 10 == 0) {
                    producer.flush();
                }
            }
        }
    }

    private static AlterConfigOp set(String name, String value) {
        return new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET);
    }

    /** 200 records in each partition, or thereabouts, from number `first` on. */
    private void produce(int first) throws Exception {
        for (String codec : CODECS) {
            try (KafkaProducer<byte[], byte[]> producer = producer(Map.of("compression.type", codec))) {
                for (int n = first; n < first + 400; n++) {
                    producer.send(record("codec-" + codec, n % 2, n, 0));
                }
            }
        }
        try (KafkaProducer<byte[], byte[]> producer = producer(Map.of())) {
            for (int n = first; n < first + 400; n++) {
                producer.send(record("compacted", 0, n, 20));
                producer.send(record("trimmed", 0, n, 0));
                producer.send(record("retained", 0, n, 0));
            }
        }
        try (Admin admin = admin()) {
            TopicPartition trimmed = new TopicPartition("trimmed", 0);
            admin.deleteRecords(Map.of(trimmed, RecordsToDelete.beforeOffset(first + 150))).all().get();
        }
        try (KafkaProducer<byte[], byte[]> one = producer(Map.of("transactional.id", "one-" + first));
             KafkaProducer<byte[], byte[]> other = producer(Map.of("transactional.id", "other-" + first))) {
            one.initTransactions();
            other.initTransactions();
            // Two producers' transactions across each other and across segments, some aborted.
            for (int n = first; n < first + 400; n += 40) {
                one.beginTransaction();
                other.beginTransaction();
                for (int m = n; m < n + 20; m++) {
                    one.send(record("transactions", 0, 2 * m, 0));
                    other.send(record("transactions", 0, 2 * m + 1, 0));
                }
                one.flush();
                other.flush();
                if (n % 80 == 0) {
                    one.abortTransaction();
                } else {
                    one.commitTransaction();
                }
                if (n % 120 == 0) {
                    other.abortTransaction();
                } else {
                    other.commitTransaction();
                }
            }
        }
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (String codec : CODECS) {
            offsets.put(new TopicPartition("codec-" + codec, 1), new OffsetAndMetadata(first / 2 + 7, "at-" + first));
        }
        try (Admin admin = admin()) {
            admin.alterConsumerGroupOffsets("readers", offsets).all().get();
            // Given up again, in the second round.
            if (first == 0) {
                admin.alterConsumerGroupOffsets("gone", offsets).all().get();
            } else {
                admin.deleteConsumerGroups(List.of("gone")).all().get();
            }
        }
    }

    /** A transaction that nobody ends: its producer's process does. */
    private void leaveOpen() throws Exception {
        KafkaProducer<byte[], byte[]> producer = producer(Map.of("transactional.id", "left", "transaction.timeout.ms", 3000));
        producer.initTransactions();
        producer.beginTransaction();
        for (int n = 0; n < 10; n++) {
            producer.send(record("left", 0, n, 0));
        }
        producer.flush();
    }

    /** Waits until the coordinator has ended the transaction that was left. */
    private void awaitEnd() throws Exception {
        TopicPartition left = new TopicPartition("left", 0);
        long deadline = System.currentTimeMillis() + 60_000;
        Map<String, Object> configs = Map.of("bootstrap.servers", bootstrap, "isolation.level", "read_committed");
        try (KafkaConsumer<byte[], byte[]> consumer =
                 new KafkaConsumer<>(configs, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            // Ten records, and the marker.
            while (consumer.endOffsets(List.of(left)).get(left) < 11) {
                if (System.currentTimeMillis() > deadline) {
                    throw new AssertionError("the transaction is not ended");
                }
                Thread.sleep(100);
            }
        }
    }

    /** An idempotent producer that sees its broker go, and another one come: it goes on with its id, epoch and sequence. */
    private void hold() throws Exception {
        Map<String, Object> patient = Map.of("delivery.timeout.ms", 120_000, "reconnect.backoff.max.ms", 500);
        try (KafkaProducer<byte[], byte[]> producer = producer(patient)) {
            for (int n = 0; n < 60; n++) {
                if (n == 30) {
                    System.out.println("holds");
                    System.out.flush();
                    System.in.read();
                }
                long offset = producer.send(record("held", 0, n, 0)).get().offset();
                if (offset != n) {
                    throw new AssertionError("record " + n + " went to " + offset);
                }
            }
        }
    }

    /** New records behind the old ones: with a producer id of the new broker, which must be nobody's. */
    private void goOn() throws Exception {
        TopicPartition partition = new TopicPartition("codec-none", 0);
        long end;
        try (Admin admin = admin()) {
            end = admin.listOffsets(Map.of(partition, OffsetSpec.latest())).partitionResult(partition).get().offset();
        }
        try (KafkaProducer<byte[], byte[]> producer = producer(Map.of())) {
            for (int n = 0; n < 10; n++) {
                long offset = producer.send(record("codec-none", 0, n, 0)).get().offset();
                if (offset != end + n) {
                    throw new AssertionError("record " + n + " went to " + offset + ", the log ended at " + end);
                }
            }
        }
    }

    private void read(String file) throws Exception {
        try (PrintStream out = new PrintStream(file, StandardCharsets.UTF_8); Admin admin = admin()) {
            TreeMap<String, Integer> partitions = new TreeMap<>();
            TreeMap<String, String> topics = new TreeMap<>();
            admin.describeTopics(admin.listTopics().names().get()).allTopicNames().get().forEach((name, topic) -> {
                partitions.put(name, topic.partitions().size());
                topics.put(name, "topic " + name + " " + topic.topicId() + " " + topic.partitions().size());
            });
            topics.values().forEach(out::println);
            List<TopicPartition> all = new ArrayList<>();
            partitions.forEach((name, count) -> {
                for (int p = 0; p < count; p++) {
                    all.add(new TopicPartition(name, p));
                }
            });
            for (String isolation : List.of("read_uncommitted", "read_committed")) {
                for (TopicPartition partition : all) {
                    readPartition(out, partition, isolation);
                }
            }
            for (TopicPartition partition : all) {
                for (long time = BASE_MS - 5; time < BASE_MS + 9000; time += 1111) {
                    var found = admin.listOffsets(Map.of(partition, OffsetSpec.forTimestamp(time))).partitionResult(partition).get();
                    out.println("time " + partition + " " + time + " " + found.offset() + " " + found.timestamp() + " " + found.leaderEpoch());
                }
            }
            for (String group : new TreeSet<>(List.of("readers", "gone"))) {
                Map<TopicPartition, OffsetAndMetadata> committed;
                try {
                    committed = admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
                } catch (java.util.concurrent.ExecutionException e) {
                    committed = Map.of();
                }
                TreeMap<String, String> sorted = new TreeMap<>();
                committed.forEach((p, o) -> sorted.put(p.toString(), o.offset() + " " + o.metadata()));
                sorted.forEach((p, o) -> out.println("group " + group + " " + p + " " + o));
            }
        }
    }

    private void readPartition(PrintStream out, TopicPartition partition, String isolation) {
        Map<String, Object> configs = Map.of("bootstrap.servers", bootstrap, "isolation.level", isolation, "fetch.max.bytes", 30000);
        try (KafkaConsumer<byte[], byte[]> consumer =
                 new KafkaConsumer<>(configs, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> one = List.of(partition);
            consumer.assign(one);
            long begin = consumer.beginningOffsets(one).get(partition);
            long end = consumer.endOffsets(one).get(partition);
            out.println(isolation + " " + partition + " from " + begin + " to " + end);
            consumer.seek(partition, begin);
            long deadline = System.currentTimeMillis() + 20_000;
            while (consumer.position(partition) < end) {
                if (System.currentTimeMillis() > deadline) {
                    out.println("  stuck at " + consumer.position(partition));
                    return;
                }
                for (ConsumerRecord<byte[], byte[]> r : consumer.poll(Duration.ofMillis(200)).records(partition)) {
                    StringBuilder headers = new StringBuilder();
                    for (Header h : r.headers()) {
                        headers.append(' ').append(h.key()).append('=').append(Arrays.toString(h.value()));
                    }
                    out.println("  " + r.offset() + " " + r.timestampType() + " " + r.timestamp() + " epoch " + r.leaderEpoch().orElse(-1)
                        + " " + Arrays.toString(r.key()) + " " + Arrays.hashCode(r.value()) + headers);
                }
            }
        }
    }
}
