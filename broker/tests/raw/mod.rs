//! A client that says exactly what a test wants said: frames over a blocking socket, and the real binary to talk
//! to.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

pub mod groups;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use kaas_engine::batch::{BatchOptions, Producer, SimpleRecord, data_batch};
use kaas_engine::types::{ProducerId, Timestamp};
use kaas_fault_injection::process::{BrokerCommand, BrokerProcess};
use kaas_protocol::DeleteRecordsRequest;
use kaas_protocol::ListOffsetsRequest;
use kaas_protocol::messages::create_topics::{CreatableTopic, CreatableTopicConfig};
use kaas_protocol::messages::delete_records::DeleteRecordsPartition;
use kaas_protocol::messages::delete_records::DeleteRecordsTopic;
use kaas_protocol::messages::fetch::{FetchPartition, FetchTopic, PartitionData};
use kaas_protocol::messages::list_offsets::ListOffsetsPartition;
use kaas_protocol::messages::list_offsets::ListOffsetsPartitionResponse;
use kaas_protocol::messages::list_offsets::ListOffsetsTopic;
use kaas_protocol::messages::produce::{PartitionProduceData, PartitionProduceResponse, TopicProduceData};
use kaas_protocol::{
    CreateTopicsRequest, ErrorCode, FetchRequest, FetchResponse, KString, ProduceRequest, ProduceResponse,
    Request, RequestHeader, Response, Segments, decode_response_frame, encode_request_frame,
};
use tempfile::TempDir;

/// Longest wait for anything.
pub const LONG: Duration = Duration::from_secs(20);

/// A broker of the real binary, on a directory of its own.
pub struct Broker {
    pub process: BrokerProcess,
    pub dir: TempDir,
}

impl Broker {
    pub fn start(arguments: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let process = command(&dir, arguments).start().unwrap();
        Self { process, dir }
    }

    pub fn address(&self) -> SocketAddr {
        self.process.bootstrap()
    }

    pub fn connect(&self) -> Client {
        Client::connect(self.address())
    }

    /// Starts another process on the same directory, after this one has ended.
    pub fn restart(&mut self, arguments: &[&str]) {
        self.process = command(&self.dir, arguments).start().unwrap();
    }
}

/// The real binary on `dir`.
pub fn command(dir: impl AsRef<Path>, arguments: &[&str]) -> BrokerCommand {
    let command = BrokerCommand::new(env!("CARGO_BIN_EXE_kaas"), dir.as_ref());
    arguments.iter().fold(command, |command, argument| command.arg(*argument))
}

/// One connection.
pub struct Client {
    pub stream: TcpStream,
    next_id: i32,
}

impl Client {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect_timeout(&address, LONG).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        Self { stream, next_id: 0 }
    }

    /// The bytes of a request frame, and its correlation id.
    pub fn encode<Q: Request>(&mut self, version: i16, request: &Q) -> (i32, Bytes) {
        self.next_id += 1;
        let header = RequestHeader {
            api_key: Q::API_KEY.code(),
            api_version: version,
            correlation_id: self.next_id,
            client_id: Some(KString::from("raw")),
        };
        let mut out = Segments::new();
        encode_request_frame(&mut out, &header, request).unwrap();
        (self.next_id, out.to_bytes().unwrap())
    }

    pub fn send<Q: Request>(&mut self, version: i16, request: &Q) -> i32 {
        let (id, frame) = self.encode(version, request);
        self.stream.write_all(&frame).unwrap();
        id
    }

    /// The next frame without its length; `None` if the broker closed the connection.
    pub fn frame(&mut self) -> Option<Bytes> {
        let mut length = [0; 4];
        match self.stream.read_exact(&mut length) {
            Ok(()) => {}
            Err(error) if is_closed(&error) => return None,
            Err(error) => panic!("no answer: {error}"),
        }
        let mut frame = vec![0; usize::try_from(i32::from_be_bytes(length)).unwrap()];
        self.stream.read_exact(&mut frame).unwrap();
        Some(frame.into())
    }

    pub fn receive<R: Response>(&mut self, version: i16) -> (i32, R) {
        let frame = self.frame().expect("the broker closed the connection");
        decode_response_frame(version, &frame).unwrap()
    }

    pub fn call<Q: Request>(&mut self, version: i16, request: &Q) -> Q::Response {
        let sent = self.send(version, request);
        let (id, response) = self.receive::<Q::Response>(version);
        assert_eq!(id, sent);
        response
    }

    pub fn create_topic(&mut self, name: &str, partitions: i32, configs: &[(&str, &str)]) {
        let configs = configs.iter().map(|(name, value)| CreatableTopicConfig {
            name: KString::from(*name),
            value: Some(KString::from(*value)),
        });
        let topic = CreatableTopic {
            name: name.into(),
            num_partitions: partitions,
            replication_factor: -1,
            configs: configs.collect(),
            ..CreatableTopic::default()
        };
        let request = CreateTopicsRequest { topics: vec![topic], timeout_ms: 10_000, ..Default::default() };
        let response = self.call(7, &request);
        assert_eq!(response.topics[0].error_code, ErrorCode::NONE, "{response:?}");
    }

    /// Produces one batch and gives the partition's answer.
    pub fn produce(&mut self, topic: &str, partition: i32, records: Bytes) -> PartitionProduceResponse {
        let response = self.call(9, &produce_request(topic, partition, -1, records));
        response.responses[0].partition_responses[0].clone()
    }

    /// Everything of a partition from `offset` on, up to what one fetch gives.
    pub fn fetch(&mut self, topic: &str, partition: i32, offset: i64) -> PartitionData {
        let response: FetchResponse = self.call(12, &fetch_request(topic, partition, offset, 0));
        assert_eq!(response.error_code, ErrorCode::NONE);
        response.responses[0].partitions[0].clone()
    }

    /// Whether the broker has closed the connection, without an answer before.
    pub fn is_closed(&mut self) -> bool {
        self.frame().is_none()
    }
}

fn is_closed(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
    )
}

pub fn produce_request(topic: &str, partition: i32, acks: i16, records: Bytes) -> ProduceRequest {
    let data = PartitionProduceData { index: partition, records: Some(records) };
    let topic = TopicProduceData { name: topic.into(), partition_data: vec![data], ..Default::default() };
    ProduceRequest { acks, timeout_ms: 20_000, topic_data: vec![topic], ..Default::default() }
}

pub fn fetch_request(topic: &str, partition: i32, offset: i64, max_wait_ms: i32) -> FetchRequest {
    let partition = FetchPartition {
        partition,
        fetch_offset: offset,
        partition_max_bytes: 64 << 20,
        ..FetchPartition::default()
    };
    let topic = FetchTopic { topic: topic.into(), partitions: vec![partition], ..FetchTopic::default() };
    FetchRequest { max_wait_ms, min_bytes: 1, max_bytes: 64 << 20, topics: vec![topic], ..Default::default() }
}

pub fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

/// A batch with one record of each value.
pub fn batch(values: &[&[u8]]) -> Bytes {
    batch_at(now(), values)
}

pub fn batch_at(timestamp: i64, values: &[&[u8]]) -> Bytes {
    let options = BatchOptions { base_timestamp: Timestamp(timestamp), ..BatchOptions::default() };
    data_batch(&records(values), &options).unwrap()
}

pub fn idempotent_batch(id: i64, epoch: i16, base_sequence: i32, values: &[&[u8]]) -> Bytes {
    let options = BatchOptions {
        base_timestamp: Timestamp(now()),
        producer: Some(Producer { id: ProducerId(id), epoch, base_sequence }),
        ..BatchOptions::default()
    };
    data_batch(&records(values), &options).unwrap()
}

fn records(values: &[&[u8]]) -> Vec<SimpleRecord> {
    values.iter().map(|value| SimpleRecord::of_value(value.to_vec())).collect()
}

/// The bytes of an answer's records.
pub fn record_bytes(data: &PartitionData) -> Bytes {
    let mut all = Vec::new();
    for part in data.records.as_ref().unwrap().parts() {
        match part {
            kaas_protocol::RecordsPart::Bytes(bytes) => all.extend_from_slice(bytes),
            kaas_protocol::RecordsPart::External(_) => panic!("a range over the wire"),
        }
    }
    all.into()
}

pub type Produced = ProduceResponse;

pub fn list_offset(
    client: &mut Client,
    version: i16,
    topic: &str,
    timestamp: i64,
) -> ListOffsetsPartitionResponse {
    let partition = ListOffsetsPartition { timestamp, ..ListOffsetsPartition::default() };
    let topic = ListOffsetsTopic { name: topic.into(), partitions: vec![partition] };
    let request = ListOffsetsRequest { replica_id: -1, topics: vec![topic], ..ListOffsetsRequest::default() };
    client.call(version, &request).topics[0].partitions[0].clone()
}

/// DeleteRecords in the first partition of a topic: the answer's error and new log start.
pub fn delete_records(client: &mut Client, topic: &str, offset: i64) -> (ErrorCode, i64) {
    let partition = DeleteRecordsPartition { partition_index: 0, offset };
    let topic = DeleteRecordsTopic { name: topic.into(), partitions: vec![partition] };
    let request = DeleteRecordsRequest { topics: vec![topic], timeout_ms: 10_000 };
    let answer = client.call(2, &request).topics[0].partitions[0].clone();
    (answer.error_code, answer.low_watermark)
}

pub fn topic(name: &str, num_partitions: i32, replication_factor: i16) -> CreatableTopic {
    CreatableTopic { name: name.into(), num_partitions, replication_factor, ..CreatableTopic::default() }
}
