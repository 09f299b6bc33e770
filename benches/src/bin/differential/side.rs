//! One of the two brokers: sends requests, writes down the answers in a form that can be compared.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bytes::Bytes;
use kaas_protocol::messages::create_topics::{CreatableTopic, CreatableTopicConfig};
use kaas_protocol::messages::list_offsets::{ListOffsetsPartition, ListOffsetsTopic};
use kaas_protocol::{
    ApiKey, ApiVersionsRequest, CreateTopicsRequest, DescribeConfigsRequest, DescribeConfigsResponse,
    ErrorCode, FetchResponse, KString, ListOffsetsRequest, MetadataRequest, Request, RequestHeader, Response,
    Segments, Uuid, VersionRange, decode_response_frame, encode_request_frame,
};

use super::batches;
use super::transcript::Entry;

const LONG: Duration = Duration::from_secs(6);

/// Which broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    Kaas,
    Kafka,
}

/// Fields that are not compared: they say how busy a broker is, where it is, or when something was done.
const IGNORED: [&str; 12] = [
    "throttle_time_ms",
    "cluster_id",
    "log_dir",
    "total_bytes",
    "usable_bytes",
    "port",
    "host",
    "client_host",
    "finalized_features_epoch",
    "session_id",
    "log_append_time_ms",
    "producer_id",
];

/// Fields whose value -1 says something and whose other values are a broker's own.
const OWN_OR_NONE: [&str; 4] =
    ["session_id", "log_append_time_ms", "finalized_features_epoch", "producer_id"];

/// Versions that kaas serves, from its own answer.
pub fn served_versions(address: SocketAddr) -> BTreeMap<i16, VersionRange> {
    let mut side = Side::connect(Who::Kaas, address, "versions", BTreeMap::new());
    let response = side.ask(0, &ApiVersionsRequest::default()).expect("ApiVersions");
    let served = response
        .api_keys
        .iter()
        .map(|api| (api.api_key, VersionRange { min: api.min_version, max: api.max_version }));
    served.collect()
}

/// Names of the configs of the broker, from its own answer.
pub fn broker_configs(address: SocketAddr) -> BTreeSet<String> {
    let mut side = Side::connect(Who::Kaas, address, "configs", BTreeMap::new());
    let resources = vec![kaas_protocol::messages::describe_configs::DescribeConfigsResource {
        resource_type: 4,
        resource_name: "1".into(),
        configuration_keys: None,
    }];
    let response =
        side.ask(4, &DescribeConfigsRequest { resources, ..Default::default() }).expect("DescribeConfigs");
    response.results[0].configs.iter().map(|config| config.name.to_owned_string()).collect()
}

pub struct Side {
    pub who: Who,
    /// Prefix of the case's topics and groups.
    prefix: String,
    address: SocketAddr,
    stream: TcpStream,
    next_id: i32,
    versions: BTreeMap<i16, VersionRange>,
    /// Values that stand for the same thing on both brokers, and their common name.
    aliases: Vec<(String, String)>,
    entries: Vec<Entry>,
    note: String,
    /// The leader epoch of every partition.
    pub epoch: i32,
    /// Names of the broker configs that kaas has.
    pub kaas_configs: BTreeSet<String>,
    /// Whether the texts of error messages are compared, and not only whether there is one.
    pub texts: bool,
}

impl Side {
    pub fn connect(
        who: Who,
        address: SocketAddr,
        prefix: &str,
        versions: BTreeMap<i16, VersionRange>,
    ) -> Self {
        let stream = open(address);
        Self {
            who,
            prefix: prefix.to_owned(),
            address,
            stream,
            next_id: 0,
            versions,
            aliases: Vec::new(),
            entries: Vec::new(),
            note: String::new(),
            epoch: 0,
            kaas_configs: BTreeSet::new(),
            texts: false,
        }
    }

    pub fn finish(self) -> Vec<Entry> {
        self.entries
    }

    /// Another connection to the same broker; its answers are appended with [`Side::absorb`].
    pub fn another(&self) -> Self {
        let mut other = Self::connect(self.who, self.address, &self.prefix, self.versions.clone());
        other.aliases = self.aliases.clone();
        other.epoch = self.epoch;
        other.texts = self.texts;
        other.next_id = 10_000;
        other
    }

    pub fn absorb(&mut self, other: Self) {
        self.aliases = other.aliases;
        self.entries.extend(other.entries);
    }

    /// A name of this case.
    pub fn name(&self, suffix: &str) -> String {
        format!("{}-{suffix}", self.prefix)
    }

    /// What the next requests are about.
    pub fn note(&mut self, note: impl Into<String>) {
        self.note = note.into();
    }

    /// In what follows, `value` is called `name`.
    pub fn alias(&mut self, value: impl ToString, name: &str) {
        let value = value.to_string();
        if value.len() > 3 && !self.aliases.iter().any(|(known, _)| *known == value) {
            self.aliases.push((value, format!("<{name}>")));
        }
    }

    /// Versions of an API that both are asked in: those that kaas serves.
    pub fn versions<Q: Request>(&self) -> Vec<i16> {
        let served = self.versions.get(&Q::API_KEY.code()).copied().unwrap_or(Q::VERSIONS);
        Q::VERSIONS.iter().filter(|version| served.contains(*version)).collect()
    }

    pub fn max<Q: Request>(&self) -> i16 {
        self.versions::<Q>().last().copied().unwrap()
    }

    /// Sends a request in every version that is served.
    pub fn every<Q: Request>(&mut self, mut request: impl FnMut(&mut Self, i16) -> Q)
    where
        Q::Response: Sorted,
    {
        for version in self.versions::<Q>() {
            let request = request(self, version);
            self.call(version, &request);
        }
    }

    /// Sends a request and writes down the answer. `None` if there was none.
    pub fn call<Q: Request>(&mut self, version: i16, request: &Q) -> Option<Q::Response>
    where
        Q::Response: Sorted,
    {
        let name = Q::API_KEY.name();
        let label = format!("{name} v{version} {}", self.note);
        match self.attempt(version, request) {
            Ok(mut response) => {
                response.sort(self);
                self.write_down(label, &response);
                Some(response)
            }
            Err(why) => {
                self.entries.push(Entry { label, text: why });
                None
            }
        }
    }

    /// As [`Side::ask`], for a request that its version may not be able to say.
    pub fn try_ask<Q: Request>(&mut self, version: i16, request: &Q) -> Result<Q::Response, String> {
        self.attempt(version, request)
    }

    /// Writes down what a request was answered, under the note.
    pub fn write_noted(&mut self, api: &str, version: i16, what: &str, value: &impl Debug) {
        let label = format!("{api} v{version} {}: {what}", self.note);
        self.write_down(label, value);
    }

    /// Keys that kaas serves.
    pub fn served_keys(&self) -> Vec<i16> {
        self.versions.keys().copied().collect()
    }

    /// Versions of a key that kaas serves.
    pub fn served_range(&self, api: ApiKey) -> Option<VersionRange> {
        self.versions.get(&api.code()).copied()
    }

    /// Names of the broker configs that kaas has.
    pub fn broker_configs_of_kaas(&self) -> &BTreeSet<String> {
        &self.kaas_configs
    }

    /// Of documentation, only whether there is any.
    pub fn present_documentation(&self, response: &mut DescribeConfigsResponse) {
        for result in &mut response.results {
            result.configs.sort_by_key(|config| config.name.to_owned_string());
            for config in &mut result.configs {
                config.documentation =
                    config.documentation.take().map(|text| if text.is_empty() { "" } else { "some" }.into());
            }
        }
    }

    /// Sends a request and writes nothing down.
    pub fn ask<Q: Request>(&mut self, version: i16, request: &Q) -> Option<Q::Response> {
        self.attempt(version, request).ok()
    }

    fn attempt<Q: Request>(&mut self, version: i16, request: &Q) -> Result<Q::Response, String> {
        let frame = self.encode(version, request)?;
        self.stream.write_all(&frame).map_err(|error| error.to_string())?;
        self.receive(version)
    }

    pub fn encode<Q: Request>(&mut self, version: i16, request: &Q) -> Result<Bytes, String> {
        self.next_id += 1;
        let header = RequestHeader {
            api_key: Q::API_KEY.code(),
            api_version: version,
            correlation_id: self.next_id,
            client_id: Some(KString::from("differ")),
        };
        let mut out = Segments::new();
        encode_request_frame(&mut out, &header, request)
            .map_err(|error| format!("cannot be said: {error}"))?;
        Ok(out.to_bytes().unwrap())
    }

    /// Sends without waiting for an answer.
    pub fn send<Q: Request>(&mut self, version: i16, request: &Q) {
        let frame = self.encode(version, request).unwrap();
        self.stream.write_all(&frame).unwrap();
    }

    /// The answer to what was sent last.
    pub fn receive<R: Response>(&mut self, version: i16) -> Result<R, String> {
        match self.frame() {
            None => {
                self.stream = open(self.address);
                Err("the connection was closed".to_owned())
            }
            Some(frame) => match decode_response_frame::<R>(version, &frame) {
                Ok((id, response)) => {
                    assert_eq!(id, self.next_id, "correlation id");
                    Ok(response)
                }
                Err(error) => Err(format!("undecodable: {error}: {frame:?}")),
            },
        }
    }

    /// Writes down the answer to what was sent last.
    pub fn received<R: Response + Sorted>(&mut self, version: i16) -> Option<R> {
        let label = format!("{} v{version} {}", R::API_KEY.name(), self.note);
        match self.receive::<R>(version) {
            Ok(mut response) => {
                response.sort(self);
                self.write_down(label, &response);
                Some(response)
            }
            Err(why) => {
                self.entries.push(Entry { label, text: why });
                None
            }
        }
    }

    /// Sends bytes as one frame, and writes down the bytes that come back behind the correlation id.
    pub fn raw(&mut self, label: &str, content: &[u8]) {
        let mut frame = u32::try_from(content.len()).unwrap().to_be_bytes().to_vec();
        frame.extend_from_slice(content);
        self.raw_stream(label, &frame);
    }

    /// The same without a length in front.
    pub fn raw_stream(&mut self, label: &str, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
        let text = match self.frame() {
            None => {
                self.stream = open(self.address);
                "the connection was closed".to_owned()
            }
            Some(frame) => format!("answered: {:?}", frame.slice(..frame.len().min(6))),
        };
        self.entries.push(Entry { label: label.to_owned(), text });
    }

    /// Writes down anything.
    pub fn write_down(&mut self, label: String, value: &impl Debug) {
        let text = self.comparable(&format!("{value:#?}"));
        self.entries.push(Entry { label, text });
    }

    fn frame(&mut self) -> Option<Bytes> {
        let mut length = [0; 4];
        match self.stream.read_exact(&mut length) {
            Ok(()) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                println!("     {:?} {} '{}': no answer", self.who, self.prefix, self.note);
                return None;
            }
            Err(_) => return None,
        }
        let mut frame = vec![0; usize::try_from(i32::from_be_bytes(length)).unwrap()];
        self.stream.read_exact(&mut frame).unwrap();
        Some(frame.into())
    }

    /// The name of an id, if it has one.
    fn common(&self, id: &Uuid) -> String {
        let text = id.to_string();
        self.aliases.iter().find(|(value, _)| *value == text).map_or(text, |(_, name)| name.clone())
    }

    fn comparable(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let (mut is_text, mut in_ignored) = (false, false);
        for line in text.lines() {
            let content = line.trim();
            if is_text && !self.texts && content.starts_with('"') && content != "\"\"," {
                out.push_str(&format!("{:indent$}<text>,\n", "", indent = line.len() - content.len()));
                is_text = false;
                continue;
            }
            is_text = content.starts_with("error_message: Some(")
                || content.starts_with("batch_index_error_message: Some(");
            if in_ignored {
                in_ignored = content != "),";
                continue;
            }
            let (field, value) = content.split_once(": ").unwrap_or(("", content));
            let value = value.trim_end_matches(',');
            if IGNORED.contains(&field) {
                in_ignored = value.ends_with('(');
                if OWN_OR_NONE.contains(&field) {
                    let kind = if value == "-1" || (value == "0" && field != "producer_id") {
                        value
                    } else {
                        "<own>"
                    };
                    let indent = line.len() - line.trim_start().len();
                    out.push_str(&format!("{:indent$}{field}: {kind},\n", ""));
                }
                continue;
            }
            let is_epoch = field.ends_with("leader_epoch") || field == "epoch";
            if is_epoch && value.parse() == Ok(self.epoch) && self.epoch != -1 {
                out.push_str(&line.replace(value, "<current>"));
            } else {
                let mut line = line.to_owned();
                for (value, name) in &self.aliases {
                    line = line.replace(value.as_str(), name);
                }
                out.push_str(&line);
            }
            out.push('\n');
        }
        out
    }

    /// Creates a topic of this case; its id gets a name.
    pub fn topic(&mut self, suffix: &str, partitions: i32, configs: &[(&str, &str)]) -> String {
        let name = self.name(suffix);
        let configs = configs.iter().map(|(name, value)| CreatableTopicConfig {
            name: KString::from(*name),
            value: Some(KString::from(*value)),
        });
        let topic = CreatableTopic {
            name: name.as_str().into(),
            num_partitions: partitions,
            replication_factor: -1,
            configs: configs.collect(),
            ..CreatableTopic::default()
        };
        let request = CreateTopicsRequest { topics: vec![topic], timeout_ms: 10_000, ..Default::default() };
        let response = self.ask(7, &request).expect("CreateTopics");
        assert_eq!(response.topics[0].error_code, ErrorCode::NONE, "{response:?}");
        let id = response.topics[0].topic_id;
        self.alias(id, &format!("id of {suffix}"));
        self.await_leader(&name, partitions);
        name
    }

    /// Waits until metadata names a leader, and learns the leader epoch.
    pub fn await_leader(&mut self, name: &str, partitions: i32) {
        let asked = kaas_protocol::messages::metadata::MetadataRequestTopic {
            name: Some(name.into()),
            ..Default::default()
        };
        let request = MetadataRequest {
            topics: Some(vec![asked]),
            allow_auto_topic_creation: false,
            ..Default::default()
        };
        for _ in 0..500 {
            let response = self.ask(12, &request).expect("Metadata");
            let topic = &response.topics[0];
            if topic.partitions.len() == usize::try_from(partitions).unwrap()
                && topic
                    .partitions
                    .iter()
                    .all(|partition| partition.error_code.is_none() && partition.leader_id >= 0)
            {
                self.epoch = topic.partitions[0].leader_epoch;
                if self.leads(name, partitions) {
                    return;
                }
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("no leader of {name}");
    }

    /// Whether the broker itself knows by now what metadata says: Kafka takes a moment.
    fn leads(&mut self, name: &str, partitions: i32) -> bool {
        let partitions = (0..partitions).map(|partition_index| ListOffsetsPartition {
            partition_index,
            timestamp: -1,
            ..ListOffsetsPartition::default()
        });
        let topic = ListOffsetsTopic { name: name.into(), partitions: partitions.collect() };
        let request = ListOffsetsRequest { replica_id: -1, topics: vec![topic], ..Default::default() };
        let response = self.ask(5, &request).expect("ListOffsets");
        response
            .topics
            .iter()
            .flat_map(|topic| &topic.partitions)
            .all(|partition| partition.error_code.is_none())
    }

    pub fn topic_id(&mut self, name: &str) -> Uuid {
        let asked = kaas_protocol::messages::metadata::MetadataRequestTopic {
            name: Some(name.into()),
            ..Default::default()
        };
        let request = MetadataRequest {
            topics: Some(vec![asked]),
            allow_auto_topic_creation: false,
            ..Default::default()
        };
        self.ask(12, &request).expect("Metadata").topics[0].topic_id
    }
}

fn open(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&address, LONG).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

/// Puts in order what has none, and takes out what belongs to other cases.
pub trait Sorted {
    fn sort(&mut self, _side: &Side) {}
}

macro_rules! as_they_are {
    ($($name:ident)*) => { $(impl Sorted for kaas_protocol::$name {})* };
}

as_they_are! {
    FindCoordinatorResponse ApiVersionsResponse
    HeartbeatResponse LeaveGroupResponse SyncGroupResponse
    InitProducerIdResponse
    AlterConfigsResponse
    IncrementalAlterConfigsResponse DescribeClusterResponse
    SaslHandshakeResponse
}

macro_rules! sorted {
    ($($name:ident: |$response:ident, $side:ident| $body:block)*) => {
        $(impl Sorted for kaas_protocol::$name {
            fn sort(&mut self, $side: &Side) {
                let $response = self;
                let _ = $side;
                $body
            }
        })*
    };
}

sorted! {
    // Kafka collects these in hash maps.
    ProduceResponse: |response, side| {
        response.responses.sort_by_key(|topic| (topic.name.to_owned_string(), side.common(&topic.topic_id)));
        for topic in &mut response.responses {
            topic.partition_responses.sort_by_key(|partition| partition.index);
        }
    }
    DescribeGroupsResponse: |response, side| {
        response.groups.sort_by_key(|group| group.group_id.to_owned_string());
        for group in &mut response.groups {
            group.members.sort_by_key(|member| side.comparable(&member.member_id));
        }
    }
    JoinGroupResponse: |response, side| {
        response.members.sort_by_key(|member| side.comparable(&member.member_id));
    }
    CreateTopicsResponse: |response, side| {
        response.topics.sort_by_key(|topic| topic.name.to_owned_string());
        for topic in &mut response.topics {
            if let Some(configs) = &mut topic.configs {
                configs.sort_by_key(|config| config.name.to_owned_string());
            }
        }
    }
    DeleteTopicsResponse: |response, side| {
        response.responses.sort_by_key(|topic| (format!("{:?}", topic.name), side.common(&topic.topic_id), topic.error_code));
    }
    CreatePartitionsResponse: |response, side| {
        response.results.sort_by_key(|topic| topic.name.to_owned_string());
    }
    DescribeConfigsResponse: |response, side| {
        for result in &mut response.results {
            result.configs.sort_by_key(|config| config.name.to_owned_string());
        }
    }
    ListConfigResourcesResponse: |response, side| {
        response.config_resources.retain(|r| r.resource_type != 2 || r.resource_name.starts_with(&side.prefix));
        response.config_resources.sort_by_key(|r| (r.resource_type, r.resource_name.to_owned_string()));
    }
    MetadataResponse: |response, side| {
        response.topics.sort_by_key(|topic| (format!("{:?}", topic.name), side.common(&topic.topic_id)));
        for topic in &mut response.topics {
            topic.partitions.sort_by_key(|partition| partition.partition_index);
        }
    }
    DescribeTopicPartitionsResponse: |response, side| {
        let _ = response;
    }
    DescribeLogDirsResponse: |response, side| {
        for result in &mut response.results {
            result.topics.retain(|topic| topic.name.starts_with(&side.prefix));
            result.topics.sort_by_key(|topic| topic.name.to_owned_string());
            for topic in &mut result.topics {
                topic.partitions.sort_by_key(|partition| partition.partition_index);
            }
        }
    }
    DeleteGroupsResponse: |response, side| {
        response.results.sort_by_key(|result| result.group_id.to_owned_string());
    }
    ListGroupsResponse: |response, side| {
        response.groups.retain(|group| group.group_id.starts_with(&side.prefix));
        response.groups.sort_by_key(|group| group.group_id.to_owned_string());
    }
    OffsetFetchResponse: |response, side| {
        response.topics.sort_by_key(|topic| topic.name.to_owned_string());
        for topic in &mut response.topics {
            topic.partitions.sort_by_key(|partition| partition.partition_index);
        }
        for group in &mut response.groups {
            group.topics.sort_by_key(|topic| (topic.name.to_owned_string(), side.common(&topic.topic_id)));
            for topic in &mut group.topics {
                topic.partitions.sort_by_key(|partition| partition.partition_index);
            }
        }
    }
    ListOffsetsResponse: |response, side| {
        response.topics.sort_by_key(|topic| topic.name.to_owned_string());
        for topic in &mut response.topics {
            topic.partitions.sort_by_key(|partition| partition.partition_index);
        }
    }
    OffsetForLeaderEpochResponse: |response, side| {
        response.topics.sort_by_key(|topic| topic.topic.to_owned_string());
        for topic in &mut response.topics {
            topic.partitions.sort_by_key(|partition| partition.partition);
        }
    }
    DeleteRecordsResponse: |response, side| {
        response.topics.sort_by_key(|topic| topic.name.to_owned_string());
        for topic in &mut response.topics {
            topic.partitions.sort_by_key(|partition| partition.partition_index);
        }
    }
    OffsetCommitResponse: |response, side| {
        response.topics.sort_by_key(|topic| (topic.name.to_owned_string(), side.common(&topic.topic_id)));
        for topic in &mut response.topics {
            topic.partitions.sort_by_key(|partition| partition.partition_index);
        }
    }
    OffsetDeleteResponse: |response, side| {
        response.topics.sort_by_key(|topic| topic.name.to_owned_string());
    }
}

impl Sorted for FetchResponse {
    fn sort(&mut self, side: &Side) {
        for topic in &mut self.responses {
            topic.partitions.sort_by_key(|partition| partition.partition_index);
            for partition in &mut topic.partitions {
                if let Some(records) = &mut partition.records {
                    *records = Bytes::from(batches::describe(records, side.epoch)).into();
                }
            }
        }
        self.responses.sort_by_key(|topic| (topic.topic.to_owned_string(), side.common(&topic.topic_id)));
    }
}

/// All there is, for cases that walk over the keys.
pub fn api_keys() -> &'static [ApiKey] {
    ApiKey::ALL
}
