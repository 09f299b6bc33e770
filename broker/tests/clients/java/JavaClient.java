import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The basic and the group round trip with the Java client library itself: JavaClient basic|group BOOTSTRAP PREFIX. */
public final class JavaClient {
    /** An hour ago: told from the broker's clock, and not deleted by retention. */
    private static final long BASE_MS = System.currentTimeMillis() - 3_600_000;
    private final String bootstrap;
    private final String prefix;

    private JavaClient(String bootstrap, String prefix) {
        this.bootstrap = bootstrap;
        this.prefix = prefix;
    }

    public static void main(String[] args) throws Exception {
        JavaClient client = new JavaClient(args[1], args[2]);
        switch (args[0]) {
            case "basic" -> client.basic();
            case "group" -> client.group();
            default -> throw new IllegalArgumentException(args[0]);
        }
        System.out.println("ok");
    }

    private static void check(boolean ok, String what) {
        if (!ok) {
            throw new AssertionError(what);
        }
    }

    private Admin admin() {
        return Admin.create(Map.of("bootstrap.servers", (Object) bootstrap, "default.api.timeout.ms", 30000));
    }

    private KafkaProducer<byte[], byte[]> producer(String compression) {
        Properties p = new Properties();
        p.put(ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        p.put(ProducerConfig.ACKS_CONFIG, "all");
        p.put(ProducerConfig.ENABLE_IDEMPOTENCE_CONFIG, "true");
        p.put(ProducerConfig.COMPRESSION_TYPE_CONFIG, compression);
        p.put(ProducerConfig.LINGER_MS_CONFIG, "5");
        p.put(ProducerConfig.DELIVERY_TIMEOUT_MS_CONFIG, "30000");
        p.put(ProducerConfig.REQUEST_TIMEOUT_MS_CONFIG, "20000");
        return new KafkaProducer<>(p, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private KafkaConsumer<byte[], byte[]> consumer(String group, String instance) {
        Properties p = new Properties();
        p.put(ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        p.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        p.put(ConsumerConfig.ENABLE_AUTO_COMMIT_CONFIG, "false");
        p.put(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG, "10000");
        p.put(ConsumerConfig.HEARTBEAT_INTERVAL_MS_CONFIG, "500");
        p.put(ConsumerConfig.MAX_POLL_RECORDS_CONFIG, "50");
        if (group != null) {
            p.put(ConsumerConfig.GROUP_ID_CONFIG, group);
        }
        if (instance != null) {
            p.put(ConsumerConfig.GROUP_INSTANCE_ID_CONFIG, instance);
        }
        return new KafkaConsumer<>(p, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static ProducerRecord<byte[], byte[]> record(String topic, int partition, int i, String codec) {
        byte[] key = i % 7 == 0 ? null : ("key-" + i).getBytes(StandardCharsets.UTF_8);
        byte[] value = i % 11 == 0 ? null : ("value-" + codec + "-" + i + "-" + "x".repeat(i)).getBytes(StandardCharsets.UTF_8);
        List<Header> headers = i % 5 == 0 ? List.of() : List.of(
            new RecordHeader("h", ("first-" + i).getBytes(StandardCharsets.UTF_8)),
            new RecordHeader("h", ("second-" + i).getBytes(StandardCharsets.UTF_8)),
            new RecordHeader("null", null));
        return new ProducerRecord<>(topic, partition, BASE_MS + i, key, value, headers);
    }

    private void basic() throws Exception {
        String topic = prefix + "-java-basic";
        int partitions = 3;
        int each = 60;
        List<String> codecs = List.of("none", "gzip", "snappy", "lz4", "zstd");
        try (Admin admin = admin()) {
            admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1))).all().get(30, TimeUnit.SECONDS);
            Map<Integer, List<ProducerRecord<byte[], byte[]>>> sent = new TreeMap<>();
            int i = 0;
            for (String codec : codecs) {
                List<ProducerRecord<byte[], byte[]>> order = new ArrayList<>();
                List<Future<RecordMetadata>> acknowledged = new ArrayList<>();
                try (KafkaProducer<byte[], byte[]> producer = producer(codec)) {
                    for (int n = 0; n < each; n++, i++) {
                        ProducerRecord<byte[], byte[]> r = record(topic, i % partitions, i, codec);
                        order.add(r);
                        acknowledged.add(producer.send(r));
                    }
                    producer.flush();
                    for (int n = 0; n < each; n++) {
                        ProducerRecord<byte[], byte[]> r = order.get(n);
                        List<ProducerRecord<byte[], byte[]>> list = sent.computeIfAbsent(r.partition(), x -> new ArrayList<>());
                        long offset = acknowledged.get(n).get(30, TimeUnit.SECONDS).offset();
                        check(offset == list.size(), codec + ": acknowledged at offset " + offset + ", expected " + list.size());
                        list.add(r);
                    }
                }
            }
            List<TopicPartition> all = new ArrayList<>(sent.keySet().stream().map(p -> new TopicPartition(topic, p)).toList());
            Map<TopicPartition, OffsetSpec> latest = new HashMap<>();
            all.forEach(tp -> latest.put(tp, OffsetSpec.latest()));
            admin.listOffsets(latest).all().get(30, TimeUnit.SECONDS).forEach((tp, info) ->
                check(info.offset() == sent.get(tp.partition()).size(), tp + ": log end offset " + info.offset()));
            Map<TopicPartition, OffsetSpec> maximum = new HashMap<>();
            all.forEach(tp -> maximum.put(tp, OffsetSpec.maxTimestamp()));
            admin.listOffsets(maximum).all().get(30, TimeUnit.SECONDS).forEach((tp, info) -> {
                check(info.offset() == sent.get(tp.partition()).size() - 1, tp + ": offset of the maximum timestamp " + info.offset());
                check(info.timestamp() == sent.get(tp.partition()).get((int) info.offset()).timestamp(), tp + ": maximum timestamp");
            });
            try (KafkaConsumer<byte[], byte[]> consumer = consumer(null, null)) {
                consumer.assign(all);
                consumer.seekToBeginning(all);
                int total = sent.values().stream().mapToInt(List::size).sum();
                Map<Integer, Integer> next = new HashMap<>();
                long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(30);
                int seen = 0;
                while (seen < total && System.nanoTime() < deadline) {
                    for (ConsumerRecord<byte[], byte[]> r : consumer.poll(Duration.ofMillis(500))) {
                        int index = next.merge(r.partition(), 1, Integer::sum) - 1;
                        ProducerRecord<byte[], byte[]> e = sent.get(r.partition()).get(index);
                        String where = "partition " + r.partition() + " offset " + r.offset();
                        check(r.offset() == index, where + ": expected offset " + index);
                        check(Arrays.equals(r.key(), e.key()), where + ": key differs");
                        check(Arrays.equals(r.value(), e.value()), where + ": value differs");
                        check(r.timestamp() == e.timestamp(), where + ": timestamp " + r.timestamp());
                        check(Arrays.equals(r.headers().toArray(), e.headers().toArray()), where + ": headers " + r.headers());
                        seen++;
                    }
                }
                check(seen == total, "consumed " + seen + " of " + total + " records");
                Map<TopicPartition, Long> times = new HashMap<>();
                int third = 90;
                all.forEach(tp -> times.put(tp, BASE_MS + third));
                Map<TopicPartition, OffsetAndTimestamp> found = consumer.offsetsForTimes(times, Duration.ofSeconds(30));
                for (TopicPartition tp : all) {
                    List<ProducerRecord<byte[], byte[]>> list = sent.get(tp.partition());
                    int expected = 0;
                    while (list.get(expected).timestamp() < BASE_MS + third) {
                        expected++;
                    }
                    check(found.get(tp) != null && found.get(tp).offset() == expected, tp + ": offset for time " + found.get(tp));
                    check(found.get(tp).timestamp() == list.get(expected).timestamp(), tp + ": time of offset for time");
                }
                all.forEach(tp -> times.put(tp, BASE_MS * 2));
                consumer.offsetsForTimes(times, Duration.ofSeconds(30)).forEach((tp, o) -> check(o == null, tp + ": offset past the end " + o));
            }
            admin.deleteTopics(List.of(topic)).all().get(30, TimeUnit.SECONDS);
        }
    }

    /** One member, driven by the caller's thread; what it has seen and committed is the caller's to check. */
    private final class Member implements AutoCloseable {
        final KafkaConsumer<byte[], byte[]> consumer;
        final Set<TopicPartition> assigned = new HashSet<>();
        int rebalances = 0;

        Member(String topic, String group, String instance) {
            consumer = consumer(group, instance);
            consumer.subscribe(List.of(topic), new ConsumerRebalanceListener() {
                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                    assigned.removeAll(partitions);
                }

                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                    rebalances++;
                    assigned.addAll(partitions);
                }
            });
        }

        /** Polls once, adds what came to `seen` (each record once), commits. */
        void step(Set<String> seen) {
            var records = consumer.poll(Duration.ofMillis(100));
            for (ConsumerRecord<byte[], byte[]> r : records) {
                check(seen.add(r.partition() + "/" + r.offset()), "seen twice: partition " + r.partition() + " offset " + r.offset());
            }
            if (!records.isEmpty()) {
                consumer.commitSync(Duration.ofSeconds(20));
            }
        }

        @Override
        public void close() {
            consumer.close(Duration.ofSeconds(10));
        }
    }

    private void produce(String topic, int partitions, int count) throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = producer("none")) {
            List<Future<RecordMetadata>> acknowledged = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                acknowledged.add(producer.send(record(topic, i % partitions, i, "none")));
            }
            for (Future<RecordMetadata> f : acknowledged) {
                f.get(30, TimeUnit.SECONDS);
            }
        }
    }

    private void group() throws Exception {
        String topic = prefix + "-java-group";
        String group = prefix + "-java-group";
        int partitions = 4;
        try (Admin admin = admin()) {
            admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1))).all().get(30, TimeUnit.SECONDS);
            Set<String> seen = new HashSet<>();
            long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
            try (Member a = new Member(topic, group, "static-a")) {
                try (Member b = new Member(topic, group, "static-b")) {
                    // Records flow only while the group is stable: a commit that meets a rebalance is refused, and its
                    // records come again.
                    while (!(a.assigned.size() == 2 && b.assigned.size() == 2)) {
                        check(System.nanoTime() < deadline, "two members: assigned " + a.assigned + " and " + b.assigned);
                        // Two consumers of one thread: neither may block the other's join, so the polls are short.
                        a.step(seen);
                        b.step(seen);
                    }
                    produce(topic, partitions, 200);
                    while (seen.size() < 200) {
                        check(System.nanoTime() < deadline, "two members: saw " + seen.size() + " of 200 records");
                        a.step(seen);
                        b.step(seen);
                    }
                    Set<TopicPartition> both = new HashSet<>(a.assigned);
                    both.addAll(b.assigned);
                    check(both.size() == partitions, "the members share partitions: " + a.assigned + " and " + b.assigned);
                    var description = admin.describeConsumerGroups(List.of(group)).all().get(30, TimeUnit.SECONDS).get(group);
                    check(description.members().size() == 2, "described members: " + description);
                    Set<String> instances = new HashSet<>();
                    description.members().forEach(m -> instances.add(m.groupInstanceId().orElse("none")));
                    check(instances.equals(Set.of("static-a", "static-b")), "static members: " + instances);
                    try {
                        admin.deleteConsumerGroups(List.of(group)).all().get(30, TimeUnit.SECONDS);
                        check(false, "a group with members was deleted");
                    } catch (java.util.concurrent.ExecutionException e) {
                        check(e.getCause() instanceof org.apache.kafka.common.errors.GroupNotEmptyException, "delete: " + e.getCause());
                    }
                    b.close();
                }
                // A static member that comes back gets its partitions without a rebalance of the others.
                int before = a.rebalances;
                Set<TopicPartition> kept = new HashSet<>(a.assigned);
                try (Member b = new Member(topic, group, "static-b")) {
                    while (b.assigned.size() < 2) {
                        check(System.nanoTime() < deadline, "static member back: assigned " + a.assigned + " and " + b.assigned);
                        a.step(seen);
                        b.step(seen);
                    }
                    produce(topic, partitions, 200);
                    while (seen.size() < 400) {
                        check(System.nanoTime() < deadline, "static member back: saw " + seen.size() + " of 400 records");
                        a.step(seen);
                        b.step(seen);
                    }
                    check(a.rebalances == before && a.assigned.equals(kept), "the bounce of a static member caused a rebalance");
                }
            }
            // Static members do not leave when they close: remove them, then the group is empty.
            admin.removeMembersFromConsumerGroup(group, new org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions(List.of(
                new org.apache.kafka.clients.admin.MemberToRemove("static-a"),
                new org.apache.kafka.clients.admin.MemberToRemove("static-b")))).all().get(30, TimeUnit.SECONDS);
            // Dynamic members: one leaves, the other takes everything over and resumes from the commits.
            try (Member a = new Member(topic, group, null)) {
                try (Member b = new Member(topic, group, null)) {
                    while (!(a.assigned.size() == 2 && b.assigned.size() == 2)) {
                        check(System.nanoTime() < deadline, "dynamic members: assigned " + a.assigned + " and " + b.assigned);
                        a.step(seen);
                        b.step(seen);
                    }
                    produce(topic, partitions, 100);
                    while (seen.size() < 500) {
                        check(System.nanoTime() < deadline, "dynamic members: saw " + seen.size() + " of 500");
                        a.step(seen);
                        b.step(seen);
                    }
                    b.close();
                }
                while (a.assigned.size() < 4) {
                    check(System.nanoTime() < deadline, "after one left: assigned " + a.assigned);
                    a.step(seen);
                }
                produce(topic, partitions, 100);
                while (seen.size() < 600) {
                    check(System.nanoTime() < deadline, "after one left: saw " + seen.size() + " of 600");
                    a.step(seen);
                }
            }
            Map<TopicPartition, OffsetAndMetadata> committed =
                admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get(30, TimeUnit.SECONDS);
            check(committed.size() == partitions, "committed: " + committed);
            committed.forEach((tp, o) -> check(o.offset() == 150, tp + ": committed " + o.offset() + ", expected 150"));
            admin.alterConsumerGroupOffsets(group, Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(7, "by the admin client")))
                .all().get(30, TimeUnit.SECONDS);
            OffsetAndMetadata altered = admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata()
                .get(30, TimeUnit.SECONDS).get(new TopicPartition(topic, 0));
            check(altered.offset() == 7 && altered.metadata().equals("by the admin client"), "altered offset: " + altered);
            check(admin.listConsumerGroups().all().get(30, TimeUnit.SECONDS).stream().anyMatch(g -> g.groupId().equals(group)),
                "the group is not listed");
            admin.deleteConsumerGroups(List.of(group)).all().get(30, TimeUnit.SECONDS);
            check(admin.listConsumerGroups().all().get(30, TimeUnit.SECONDS).stream().noneMatch(g -> g.groupId().equals(group)),
                "the group is still listed");
        }
    }
}
