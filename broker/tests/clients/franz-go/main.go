// Command franz-go-client runs the basic and the group round trip of franz-go against a broker:
//
//	franz-go-client basic|group --bootstrap HOST:PORT --prefix NAME
//
// Exit code 0: passed; otherwise standard error says what differed.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"reflect"
	"sort"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	partitions = 3
	each       = 60
	runLimit   = 150 * time.Second
)

// An hour ago: told from the broker's clock, and not deleted by retention.
var baseMs = time.Now().UnixMilli() - 3_600_000

type failure struct{ what string }

func check(ok bool, format string, arguments ...any) {
	if !ok {
		panic(failure{fmt.Sprintf(format, arguments...)})
	}
}

func must(err error, what string) {
	check(err == nil, "%s: %v", what, err)
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: franz-go-client basic|group --bootstrap HOST:PORT --prefix NAME")
		os.Exit(2)
	}
	flags := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	bootstrap := flags.String("bootstrap", "", "HOST:PORT")
	prefix := flags.String("prefix", "", "prefix of the topics and groups to use")
	_ = flags.Parse(os.Args[2:])
	scenario := map[string]func(context.Context, string, string){"basic": basic, "group": group}[os.Args[1]]
	if scenario == nil || *bootstrap == "" || *prefix == "" {
		fmt.Fprintln(os.Stderr, "usage: franz-go-client basic|group --bootstrap HOST:PORT --prefix NAME")
		os.Exit(2)
	}
	ctx, cancel := context.WithTimeout(context.Background(), runLimit)
	defer cancel()
	start := time.Now()
	defer func() {
		if r := recover(); r != nil {
			if f, ok := r.(failure); ok {
				fmt.Fprintf(os.Stderr, "FAILED %s: %s\n", os.Args[1], f.what)
				os.Exit(1)
			}
			panic(r)
		}
	}()
	scenario(ctx, *bootstrap, *prefix)
	fmt.Printf("ok %s in %.1f s\n", os.Args[1], time.Since(start).Seconds())
}

// No record delivery timeout: franz-go counts it from the record's timestamp, and ours are of the past. The context bounds the run.
func client(bootstrap string, options ...kgo.Opt) *kgo.Client {
	base := []kgo.Opt{kgo.SeedBrokers(bootstrap), kgo.FetchMaxWait(200 * time.Millisecond)}
	c, err := kgo.NewClient(append(base, options...)...)
	must(err, "new client")
	return c
}

func testRecord(topic string, partition int32, i int, codec string) *kgo.Record {
	r := &kgo.Record{Topic: topic, Partition: partition, Timestamp: time.UnixMilli(baseMs + int64(i))}
	if i%7 != 0 {
		r.Key = []byte(fmt.Sprintf("key-%d", i))
	}
	if i%11 != 0 {
		r.Value = append([]byte(fmt.Sprintf("value-%s-%d-", codec, i)), bytes.Repeat([]byte("x"), i*5)...)
	}
	if i%5 != 0 {
		r.Headers = []kgo.RecordHeader{{Key: "h", Value: []byte("first")}, {Key: "h", Value: []byte("second")}, {Key: "null"}, {Key: "empty", Value: []byte{}}}
	}
	return r
}

func same(got, sent *kgo.Record) bool {
	if (got.Key == nil) != (sent.Key == nil) || (got.Value == nil) != (sent.Value == nil) || len(got.Headers) != len(sent.Headers) {
		return false
	}
	for i, h := range sent.Headers {
		g := got.Headers[i]
		if g.Key != h.Key || !bytes.Equal(g.Value, h.Value) || (g.Value == nil) != (h.Value == nil) {
			return false
		}
	}
	return bytes.Equal(got.Key, sent.Key) && bytes.Equal(got.Value, sent.Value) && got.Timestamp.Equal(sent.Timestamp)
}

func basic(ctx context.Context, bootstrap, prefix string) {
	topic := prefix + "-franz-go-basic"
	admin := kadm.NewClient(client(bootstrap))
	defer admin.Close()
	retention := "-1"
	created, err := admin.CreateTopic(ctx, partitions, 1, map[string]*string{"retention.ms": &retention}, topic)
	must(err, "create topic")
	check(created.ID != kadm.TopicID{}, "the created topic has no id")
	_, err = admin.CreateTopic(ctx, 1, 1, nil, topic)
	check(errors.Is(err, kerr.TopicAlreadyExists), "second create: %v", err)

	codecs := []struct {
		name  string
		codec kgo.CompressionCodec
	}{{"none", kgo.NoCompression()}, {"gzip", kgo.GzipCompression()}, {"snappy", kgo.SnappyCompression()}, {"lz4", kgo.Lz4Compression()}, {"zstd", kgo.ZstdCompression()}}
	sent := map[int32][]*kgo.Record{}
	i := 0
	for _, c := range codecs {
		// Acks from all, and idempotent: both are this client's defaults.
		producer := client(bootstrap, kgo.ProducerBatchCompression(c.codec), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(5*time.Millisecond))
		var batch []*kgo.Record
		for n := 0; n < each; n++ {
			batch = append(batch, testRecord(topic, int32(i%partitions), i, c.name))
			i++
		}
		results := producer.ProduceSync(ctx, batch...)
		must(results.FirstErr(), "produce "+c.name)
		for _, r := range batch {
			check(r.Offset == int64(len(sent[r.Partition])), "%s: acknowledged at offset %d, expected %d", c.name, r.Offset, len(sent[r.Partition]))
			sent[r.Partition] = append(sent[r.Partition], r)
		}
		producer.Close()
	}

	consumer := client(bootstrap, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	got := map[int32]int{}
	for n := 0; n < i; {
		fetches := consumer.PollFetches(ctx)
		must(fetches.Err0(), "poll")
		fetches.EachError(func(t string, p int32, err error) { check(false, "fetch of partition %d: %v", p, err) })
		fetches.EachRecord(func(r *kgo.Record) {
			at := got[r.Partition]
			check(r.Offset == int64(at), "partition %d: got offset %d, expected %d", r.Partition, r.Offset, at)
			check(same(r, sent[r.Partition][at]), "partition %d offset %d: got %v, sent %v", r.Partition, r.Offset, r, sent[r.Partition][at])
			got[r.Partition]++
			n++
		})
	}
	consumer.Close()

	starts, err := admin.ListStartOffsets(ctx, topic)
	must(err, "list start offsets")
	ends, err := admin.ListEndOffsets(ctx, topic)
	must(err, "list end offsets")
	after, err := admin.ListOffsetsAfterMilli(ctx, baseMs+100, topic)
	must(err, "list offsets by time")
	for p := int32(0); p < partitions; p++ {
		s, _ := starts.Lookup(topic, p)
		e, _ := ends.Lookup(topic, p)
		a, _ := after.Lookup(topic, p)
		expected := sort.Search(len(sent[p]), func(n int) bool { return sent[p][n].Timestamp.UnixMilli() >= baseMs+100 })
		check(s.Offset == 0 && e.Offset == int64(len(sent[p])) && a.Offset == int64(expected), "offsets of partition %d: %v %v %v", p, s, e, a)
	}
	configs, err := admin.DescribeTopicConfigs(ctx, topic)
	must(err, "describe configs")
	value := func(name string) string {
		for _, c := range configs[0].Configs {
			if c.Key == name {
				return c.MaybeValue()
			}
		}
		return ""
	}
	check(value("retention.ms") == "-1", "retention.ms is %q", value("retention.ms"))
	described, err := admin.ListTopics(ctx, topic)
	must(err, "list topics")
	check(len(described[topic].Partitions) == partitions && described[topic].ID == created.ID, "described topic: %v", described[topic])
	metadata, err := admin.BrokerMetadata(ctx)
	must(err, "broker metadata")
	check(len(metadata.Brokers) >= 1 && metadata.Cluster != "", "broker metadata: %v", metadata)
	grown, err := admin.CreatePartitions(ctx, 1, topic)
	must(err, "create partitions")
	must(grown.Error(), "create partitions")
	before := kadm.Offsets{}
	before.Add(kadm.Offset{Topic: topic, Partition: 0, At: 10, LeaderEpoch: -1})
	deleted, err := admin.DeleteRecords(ctx, before)
	must(err, "delete records")
	d, _ := deleted.Lookup(topic, 0)
	check(d.Err == nil && d.LowWatermark == 10, "delete records: %v", d)
	gone, err := admin.DeleteTopics(ctx, topic)
	must(err, "delete topic")
	must(gone.Error(), "delete topic")
}

// member is one consumer of a group; records go to one channel for all members.
type member struct {
	name   string
	client *kgo.Client
	done   chan struct{}
}

type seenRecord struct {
	who       string
	partition int32
	offset    int64
	err       error
}

func join(ctx context.Context, bootstrap, groupID, topic, name, instance string, out chan<- seenRecord, balancer kgo.GroupBalancer) *member {
	options := []kgo.Opt{kgo.ConsumerGroup(groupID), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(), kgo.SessionTimeout(10 * time.Second),
		kgo.HeartbeatInterval(300 * time.Millisecond), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.Balancers(balancer)}
	if instance != "" {
		options = append(options, kgo.InstanceID(instance))
	}
	m := &member{name: name, client: client(bootstrap, options...), done: make(chan struct{})}
	go func() {
		defer close(m.done)
		for {
			fetches := m.client.PollRecords(ctx, 40)
			if fetches.IsClientClosed() || ctx.Err() != nil {
				return
			}
			fetches.EachError(func(_ string, p int32, err error) { out <- seenRecord{who: name, partition: p, err: err} })
			records := fetches.Records()
			if len(records) > 0 {
				if err := m.client.CommitRecords(ctx, records...); err != nil {
					out <- seenRecord{who: name, err: err}
				}
			}
			for _, r := range records {
				out <- seenRecord{who: name, partition: r.Partition, offset: r.Offset}
			}
		}
	}()
	return m
}

// leave ends the member. A dynamic one leaves the group, a static one stays in it for its session.
func (m *member) leave() {
	m.client.Close()
	<-m.done
}

type collector struct {
	in   chan seenRecord
	seen map[[2]int64]bool
}

func newCollector() *collector {
	return &collector{in: make(chan seenRecord, 1000), seen: map[[2]int64]bool{}}
}

func (c *collector) until(count int, what string) {
	deadline := time.After(40 * time.Second)
	for len(c.seen) < count {
		select {
		case r := <-c.in:
			must(r.err, r.who)
			key := [2]int64{int64(r.partition), r.offset}
			check(!c.seen[key], "%s got partition %d offset %d a second time", r.who, r.partition, r.offset)
			c.seen[key] = true
		case <-deadline:
			check(false, "%s: saw %d of %d records", what, len(c.seen), count)
		}
	}
}

func group(ctx context.Context, bootstrap, prefix string) {
	roundTrip(ctx, bootstrap, prefix+"-franz-go-cooperative", kgo.CooperativeStickyBalancer())
	roundTrip(ctx, bootstrap, prefix+"-franz-go-range", kgo.RangeBalancer())
	static(ctx, bootstrap, prefix+"-franz-go-static")
}

// stable waits until the group has members with these numbers of partitions.
func stable(ctx context.Context, admin *kadm.Client, name string, counts ...int) kadm.DescribedGroup {
	deadline := time.Now().Add(40 * time.Second)
	for {
		groups, err := admin.DescribeGroups(ctx, name)
		must(err, "describe groups")
		g := groups[name]
		var sizes []int
		for _, m := range g.Members {
			if c, ok := m.Assigned.AsConsumer(); ok {
				n := 0
				for _, t := range c.Topics {
					n += len(t.Partitions)
				}
				sizes = append(sizes, n)
			}
		}
		sort.Ints(sizes)
		if g.State == "Stable" && reflect.DeepEqual(sizes, counts) {
			return g
		}
		check(time.Now().Before(deadline), "%s: group is %s with assignments %v, expected %v (%v)", name, g.State, sizes, counts, g.Err)
		time.Sleep(50 * time.Millisecond)
	}
}

func produce(ctx context.Context, bootstrap, topic string, from, count int) {
	producer := client(bootstrap, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	defer producer.Close()
	var batch []*kgo.Record
	for i := from; i < from+count; i++ {
		batch = append(batch, testRecord(topic, int32(i%4), i, "none"))
	}
	must(producer.ProduceSync(ctx, batch...).FirstErr(), "produce")
}

func roundTrip(ctx context.Context, bootstrap, name string, balancer kgo.GroupBalancer) {
	admin := kadm.NewClient(client(bootstrap))
	defer admin.Close()
	_, err := admin.CreateTopic(ctx, 4, 1, nil, name)
	must(err, "create topic")
	c := newCollector()
	a := join(ctx, bootstrap, name, name, "a", "", c.in, balancer)
	b := join(ctx, bootstrap, name, name, "b", "", c.in, balancer)
	// Records flow only while the group is stable: a commit that meets a rebalance is refused, and its records come again.
	stable(ctx, admin, name, 2, 2)
	produce(ctx, bootstrap, name, 0, 200)
	c.until(200, "two members")
	listed, err := admin.ListGroups(ctx)
	must(err, "list groups")
	_, ok := listed[name]
	check(ok, "the group is not listed")
	refused, err := admin.DeleteGroup(ctx, name)
	if err == nil {
		err = refused.Err
	}
	check(errors.Is(err, kerr.NonEmptyGroup), "delete of a group in use: %v", err)
	b.leave()
	stable(ctx, admin, name, 4)
	produce(ctx, bootstrap, name, 200, 100)
	c.until(300, "after one left")
	a.leave()
	produce(ctx, bootstrap, name, 300, 100)
	again := join(ctx, bootstrap, name, name, "c", "", c.in, balancer)
	c.until(400, "resumed")
	again.leave()
	offsets, err := admin.FetchOffsets(ctx, name)
	must(err, "fetch offsets")
	for p := int32(0); p < 4; p++ {
		o, ok := offsets.Lookup(name, p)
		check(ok && o.At == 100, "committed offset of partition %d: %v", p, o)
	}
	// Back by three in one partition, through the admin client, with metadata.
	moved := kadm.Offsets{}
	moved.Add(kadm.Offset{Topic: name, Partition: 1, At: 97, LeaderEpoch: -1, Metadata: "moved"})
	must(admin.CommitAllOffsets(ctx, name, moved), "commit offsets")
	offsets, err = admin.FetchOffsets(ctx, name)
	must(err, "fetch offsets")
	o, _ := offsets.Lookup(name, 1)
	check(o.At == 97 && o.Metadata == "moved", "committed by the admin client: %v", o)
	back := newCollector()
	d := join(ctx, bootstrap, name, name, "d", "", back.in, balancer)
	back.until(3, "after the reset")
	d.leave()
	lag, err := admin.Lag(ctx, name)
	must(err, "lag")
	check(lag[name].Lag.Total() == 0, "lag %d", lag[name].Lag.Total())
	deleted, err := admin.DeleteGroup(ctx, name)
	must(err, "delete group")
	must(deleted.Err, "delete group")
	_, err = admin.DeleteTopics(ctx, name)
	must(err, "delete topic")
}

func static(ctx context.Context, bootstrap, name string) {
	admin := kadm.NewClient(client(bootstrap))
	defer admin.Close()
	_, err := admin.CreateTopic(ctx, 4, 1, nil, name)
	must(err, "create topic")
	c := newCollector()
	a := join(ctx, bootstrap, name, name, "a", "one", c.in, kgo.RangeBalancer())
	b := join(ctx, bootstrap, name, name, "b", "two", c.in, kgo.RangeBalancer())
	before := stable(ctx, admin, name, 2, 2)
	held := map[string]string{}
	for _, m := range before.Members {
		check(m.InstanceID != nil, "a static member has no instance id")
		assigned, _ := m.Assigned.AsConsumer()
		held[*m.InstanceID] = fmt.Sprint(assigned.Topics)
	}
	check(len(held) == 2, "static members: %v", held)
	b.leave()
	b = join(ctx, bootstrap, name, name, "b again", "two", c.in, kgo.RangeBalancer())
	produce(ctx, bootstrap, name, 0, 40)
	c.until(40, "static member back")
	for _, m := range stable(ctx, admin, name, 2, 2).Members {
		assigned, _ := m.Assigned.AsConsumer()
		check(held[*m.InstanceID] == fmt.Sprint(assigned.Topics), "the bounce of a static member moved the partitions of %s", *m.InstanceID)
	}
	a.leave()
	b.leave()
	left, err := admin.LeaveGroup(ctx, kadm.LeaveGroup(name).Reason("test").InstanceIDs("one", "two"))
	must(err, "leave group")
	must(left.Error(), "leave group")
	stableEmpty, err := admin.DescribeGroups(ctx, name)
	must(err, "describe groups")
	check(stableEmpty[name].State == "Empty", "the group is %s after its static members were removed", stableEmpty[name].State)
	deleted, err := admin.DeleteGroup(ctx, name)
	must(err, "delete group")
	must(deleted.Err, "delete group")
	_, err = admin.DeleteTopics(ctx, name)
	must(err, "delete topic")
}
