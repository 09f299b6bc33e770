// kafkajs: the basic and the group round trip.  node main.js basic|group --bootstrap HOST:PORT --prefix NAME
// Exit code 0: passed; otherwise standard error says what differed. The codecs for lz4 and zstd are thin wrappers here: kafkajs
// brings gzip only, kafkajs-snappy is taken as it is.
'use strict'

const assert = require('node:assert')
const { Kafka, CompressionTypes, CompressionCodecs, AssignerProtocol, logLevel } = require('kafkajs')
const SnappyCodec = require('kafkajs-snappy')
const lz4 = require('lz4-napi')
const zstd = require('@bokuweb/zstd-wasm')

// An hour ago: told from the broker's clock, and not deleted by retention.
const BASE_MS = Date.now() - 3600000
const PARTITIONS = 3
const EACH = 60
const RUN_LIMIT_MS = 150000

CompressionCodecs[CompressionTypes.Snappy] = SnappyCodec
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: (encoder) => lz4.compressFrame(encoder.buffer),
  decompress: (buffer) => lz4.decompressFrame(buffer)
})
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async (encoder) => Buffer.from(zstd.compress(encoder.buffer, 3)),
  decompress: async (buffer) => Buffer.from(zstd.decompress(buffer))
})

const CODECS = [
  ['none', CompressionTypes.None],
  ['gzip', CompressionTypes.GZIP],
  ['snappy', CompressionTypes.Snappy],
  ['lz4', CompressionTypes.LZ4],
  ['zstd', CompressionTypes.ZSTD]
]

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

async function waitFor (condition, what, timeoutMs = 40000) {
  const deadline = Date.now() + timeoutMs
  while (!(await condition())) {
    assert(Date.now() < deadline, `not within ${timeoutMs} ms: ${what()}`)
    await sleep(20)
  }
}

function record (i, codec) {
  return {
    partition: i % PARTITIONS,
    key: i % 7 === 0 ? null : Buffer.from(`key-${i}`),
    value: i % 11 === 0 && i % 7 !== 0 ? null : Buffer.from(`value-${codec}-${i}-` + 'x'.repeat(i * 5)),
    headers: i % 5 === 0 ? {} : { a: Buffer.from(`first-${i}`), empty: Buffer.alloc(0), many: [Buffer.from('1'), Buffer.from('2')] },
    timestamp: String(BASE_MS + i)
  }
}

async function basic (kafka, prefix) {
  const topic = `${prefix}-kafkajs-basic`
  const admin = kafka.admin()
  await admin.connect()
  assert.strictEqual(await admin.createTopics({
    waitForLeaders: true,
    topics: [{ topic, numPartitions: PARTITIONS, replicationFactor: 1, configEntries: [{ name: 'retention.ms', value: '-1' }] }]
  }), true)
  assert.strictEqual(await admin.createTopics({ topics: [{ topic, numPartitions: 1 }] }), false, 'a topic was created twice')

  const sent = { 0: [], 1: [], 2: [] }
  let i = 0
  for (const [n, [codec, compression]] of CODECS.entries()) {
    const producer = kafka.producer(n % 2 ? { idempotent: true, maxInFlightRequests: 1 } : { idempotent: false })
    await producer.connect()
    const batch = []
    for (let k = 0; k < EACH; k++, i++) batch.push(record(i, codec))
    const expected = Object.fromEntries(Object.entries(sent).map(([p, list]) => [p, list.length]))
    const answers = await producer.send({ topic, messages: batch, acks: -1, compression, timeout: 20000 })
    for (const a of answers) {
      assert.strictEqual(a.errorCode, 0)
      assert.strictEqual(Number(a.baseOffset), expected[a.partition], `${codec}: base offset in partition ${a.partition}`)
    }
    for (const r of batch) sent[r.partition].push(r)
    await producer.disconnect()
  }

  const consumer = kafka.consumer({ groupId: `${prefix}-kafkajs-basic`, maxWaitTimeInMs: 200 })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  const got = { 0: [], 1: [], 2: [] }
  await consumer.run({
    eachMessage: async ({ partition, message }) => { got[partition].push(message) }
  })
  await waitFor(() => Object.values(got).flat().length >= i, () => `consumed ${Object.values(got).flat().length} of ${i} records`)
  await consumer.disconnect()
  for (const p of Object.keys(sent)) {
    assert.strictEqual(got[p].length, sent[p].length)
    for (const [offset, m] of got[p].entries()) {
      const s = sent[p][offset]
      const where = `partition ${p} offset ${m.offset}`
      assert.strictEqual(Number(m.offset), offset, where)
      assert.strictEqual(m.timestamp, s.timestamp, where)
      assert.deepStrictEqual(m.key, s.key, where)
      assert.deepStrictEqual(m.value, s.value, where)
      assert.deepStrictEqual(m.headers, s.headers, where)
    }
  }

  for (const o of await admin.fetchTopicOffsets(topic)) {
    assert.deepStrictEqual([Number(o.low), Number(o.high)], [0, sent[o.partition].length], `offsets of partition ${o.partition}`)
  }
  for (const o of await admin.fetchTopicOffsetsByTimestamp(topic, BASE_MS + 100)) {
    const expected = sent[o.partition].findIndex((r) => Number(r.timestamp) >= BASE_MS + 100)
    assert.strictEqual(Number(o.offset), expected, `offset by time of partition ${o.partition}`)
  }
  const config = async (name) => {
    const d = await admin.describeConfigs({ includeSynonyms: true, resources: [{ type: 2, name: topic }] })
    return d.resources[0].configEntries.find((e) => e.configName === name).configValue
  }
  assert.strictEqual(await config('retention.ms'), '-1')
  await admin.alterConfigs({ validateOnly: false, resources: [{ type: 2, name: topic, configEntries: [{ name: 'segment.bytes', value: '1048576' }] }] })
  await waitFor(async () => (await config('segment.bytes')) === '1048576', () => 'segment.bytes did not change')
  await admin.createPartitions({ topicPartitions: [{ topic, count: PARTITIONS + 1 }] })
  await waitFor(async () => (await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions.length === PARTITIONS + 1, () => 'the topic did not grow')
  await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '10' }] })
  const low = (await admin.fetchTopicOffsets(topic)).find((o) => o.partition === 0).low
  assert.strictEqual(Number(low), 10, 'low watermark after delete records')
  assert((await admin.describeCluster()).brokers.length >= 1)
  await admin.deleteTopics({ topics: [topic], timeout: 20000 })
  await waitFor(async () => !(await admin.listTopics()).includes(topic), () => 'the topic is still there')
  await admin.disconnect()
}

async function join (kafka, groupId, topic, seen, name) {
  const consumer = kafka.consumer({ groupId, sessionTimeout: 10000, heartbeatInterval: 300, rebalanceTimeout: 20000, maxWaitTimeInMs: 200 })
  const member = { consumer, assigned: [], error: null }
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => { member.assigned = payload.memberAssignment[topic] || [] })
  consumer.on(consumer.events.CRASH, ({ payload }) => { if (!payload.restart) member.error = payload.error })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await consumer.run({
    autoCommit: false,
    eachBatch: async ({ batch, resolveOffset }) => {
      for (const m of batch.messages) {
        const key = `${batch.partition}/${m.offset}`
        if (seen.has(key)) member.error = new Error(`${name} got ${key} a second time`)
        seen.add(key)
        resolveOffset(m.offset)
      }
      await consumer.commitOffsets([{ topic, partition: batch.partition, offset: String(Number(batch.lastOffset()) + 1) }])
    }
  })
  return member
}

async function group (kafka, prefix) {
  const name = `${prefix}-kafkajs-group`
  const admin = kafka.admin()
  await admin.connect()
  await admin.createTopics({ waitForLeaders: true, topics: [{ topic: name, numPartitions: 4, replicationFactor: 1 }] })
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 })
  await producer.connect()
  let produced = 0
  const produce = async (count) => {
    const messages = []
    for (let k = 0; k < count; k++, produced++) messages.push({ partition: produced % 4, value: String(produced) })
    await producer.send({ topic: name, messages, acks: -1 })
  }
  const seen = new Set()
  const until = async (count, what, ...members) => waitFor(() => {
    for (const m of members) if (m.error) throw m.error
    return seen.size === count
  }, () => `${what}: saw ${seen.size} of ${count}`)

  const a = await join(kafka, name, name, seen, 'a')
  const b = await join(kafka, name, name, seen, 'b')
  // Records flow only while the group is stable: a commit that meets a rebalance is refused, and its records come again.
  await waitFor(() => a.assigned.length === 2 && b.assigned.length === 2, () => `assigned ${a.assigned} and ${b.assigned}`)
  await produce(200)
  await until(200, 'two members', a, b)
  const described = (await admin.describeGroups([name])).groups[0]
  assert.deepStrictEqual([described.state, described.members.length, described.errorCode], ['Stable', 2, 0])
  const [topics] = described.members.map((m) => Object.keys(AssignerProtocol.MemberAssignment.decode(m.memberAssignment).assignment))
  assert.deepStrictEqual(topics, [name], 'assignment of a described member')
  assert((await admin.listGroups()).groups.some((g) => g.groupId === name), 'the group is not listed')
  await assert.rejects(admin.deleteGroups([name]), 'a group with members was deleted')
  await b.consumer.disconnect()
  await waitFor(() => a.assigned.length === 4, () => `after one left: assigned ${a.assigned}`)
  await produce(100)
  await until(300, 'after one left', a)
  await a.consumer.disconnect()
  await produce(100)
  const c = await join(kafka, name, name, seen, 'c')
  await until(400, 'resumed', c)
  await c.consumer.disconnect()
  const committed = (await admin.fetchOffsets({ groupId: name, topics: [name] }))[0].partitions
  assert.deepStrictEqual(committed.map((p) => Number(p.offset)), [100, 100, 100, 100], 'committed offsets')
  await admin.setOffsets({ groupId: name, topic: name, partitions: [{ partition: 1, offset: '97' }] })
  seen.clear()
  const d = await join(kafka, name, name, seen, 'd')
  await until(3, 'after the reset', d)
  await d.consumer.disconnect()
  assert.deepStrictEqual([...seen].sort(), ['1/97', '1/98', '1/99'], 'records after the reset')
  await admin.resetOffsets({ groupId: name, topic: name, earliest: true })
  await admin.deleteGroups([name])
  assert(!(await admin.listGroups()).groups.some((g) => g.groupId === name), 'the group is still listed')
  await producer.disconnect()
  await admin.deleteTopics({ topics: [name] })
  await admin.disconnect()
}

function argument (name) {
  const at = process.argv.indexOf(name)
  if (at < 0 || at + 1 >= process.argv.length) {
    console.error('usage: main.js basic|group --bootstrap HOST:PORT --prefix NAME')
    process.exit(2)
  }
  return process.argv[at + 1]
}

async function main () {
  const scenario = { basic, group }[process.argv[2]]
  const [bootstrap, prefix] = [argument('--bootstrap'), argument('--prefix')]
  if (!scenario) throw new Error(`no such scenario: ${process.argv[2]}`)
  await zstd.init()
  const started = Date.now()
  const kafka = new Kafka({ clientId: 'kaas-test', brokers: [bootstrap], logLevel: logLevel.NOTHING, requestTimeout: 20000, retry: { retries: 5 } })
  await scenario(kafka, prefix)
  console.log(`ok ${process.argv[2]} in ${((Date.now() - started) / 1000).toFixed(1)} s`)
}

setTimeout(() => { console.error(`FAILED ${process.argv[2]}: still running after ${RUN_LIMIT_MS} ms`); process.exit(1) }, RUN_LIMIT_MS).unref()
main().then(() => process.exit(0), (e) => { console.error(`FAILED ${process.argv[2]}: ${e.stack}`); process.exit(1) })
