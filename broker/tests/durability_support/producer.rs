//! Producers: threads that keep several batches in flight and write down what is acknowledged.
//!
//! One kind behaves as Kafka's idempotent producer does: a batch that was not acknowledged is sent again, with its sequence
//! number, until it is, however often the broker goes away meanwhile; the batches of a partition stay in order. The other
//! has no producer id and never sends a record twice, since it could not know whether that is a duplicate.

use std::collections::{BTreeMap, VecDeque};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kaas_engine::batch::Producer;
use kaas_engine::types::ProducerId;
use kaas_protocol::messages::produce::{PartitionProduceData, TopicProduceData};
use kaas_protocol::{ErrorCode, ProduceRequest};

use super::client::{Client, Failure, Sent};
use super::history::{Acknowledged, History};
use super::random::Random;
use super::record::{Tag, batch};
use super::{Stop, Target};

/// Kafka's limit of unacknowledged batches of an idempotent producer, per partition.
pub const IN_FLIGHT: usize = 5;

/// Pause before another attempt after an error, as `retry.backoff.ms`.
const BACKOFF: Duration = Duration::from_millis(20);

/// A retrying producer gives up when it has not got a batch through for so long after it was told to stop.
const FLUSH_WITHIN: Duration = Duration::from_secs(60);

/// What a producer is to do.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Its number in the tags of its records; also tells producers of a test apart.
    pub id: u32,
    pub topic: &'static str,
    pub partitions: i32,
    pub idempotent: bool,
    pub acks: i16,
    /// Before it ends, a retrying producer gets the rest through. Not where its broker is deposed.
    pub flush: bool,
    /// Mean pause between two requests; zero is as fast as it goes.
    pub pace: Duration,
    pub records_per_batch_max: u64,
    pub answer_within: Duration,
}

impl Plan {
    pub fn idempotent(id: u32, topic: &'static str, partitions: i32) -> Self {
        Self {
            id,
            topic,
            partitions,
            idempotent: true,
            acks: -1,
            flush: true,
            pace: Duration::from_millis(2),
            records_per_batch_max: 12,
            answer_within: super::client::ANSWER_WITHIN,
        }
    }

    pub fn plain(id: u32, topic: &'static str, partitions: i32) -> Self {
        Self { idempotent: false, ..Self::idempotent(id, topic, partitions) }
    }
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Outcome {
    pub acknowledged_batches: u64,
    /// Error codes of batches, and how often.
    pub refused: BTreeMap<i16, u64>,
    pub lost_connections: u64,
}

/// A batch that is not acknowledged yet.
#[derive(Debug)]
struct Pending {
    first: Tag,
    count: u64,
    /// On its way over the present connection.
    sent_at: Option<Instant>,
}

/// One partition's batches, oldest first. Those on their way are at the front.
#[derive(Debug, Default)]
struct Queue {
    next: u64,
    pending: VecDeque<Pending>,
    /// Batches on their way were refused or lost: nothing more is sent until all answers are in.
    broken: bool,
}

struct Worker {
    plan: Plan,
    target: Target,
    history: History,
    stop: Stop,
    random: Random,
    identity: Option<(i64, i16)>,
    queues: Vec<Queue>,
    outcome: Outcome,
}

/// Partitions that a request has a batch for, at the front of what is on its way.
type Flight = (Sent<ProduceRequest>, Vec<usize>);

/// Starts a producer; it ends when told to stop.
pub fn start(
    plan: Plan,
    target: &Target,
    history: &History,
    stop: &Stop,
    random: Random,
) -> JoinHandle<Outcome> {
    let queues = (0..plan.partitions).map(|_| Queue::default()).collect();
    let worker = Worker {
        plan,
        target: target.clone(),
        history: history.clone(),
        stop: stop.clone(),
        random,
        identity: None,
        queues,
        outcome: Outcome::default(),
    };
    std::thread::spawn(move || worker.run())
}

impl Worker {
    fn run(mut self) -> Outcome {
        let mut stopped_at: Option<Instant> = None;
        loop {
            if self.stop.is_set() {
                let since = *stopped_at.get_or_insert_with(Instant::now);
                let rest: usize = self.queues.iter().map(|queue| queue.pending.len()).sum();
                if !self.plan.flush || rest == 0 {
                    return self.outcome;
                }
                if since.elapsed() > FLUSH_WITHIN {
                    let refused = &self.outcome.refused;
                    self.history.violation(format!(
                        "producer {} could not get {rest} batches through; refusals: {refused:?}",
                        self.plan.id
                    ));
                    return self.outcome;
                }
            }
            if self.connection().is_err() {
                self.outcome.lost_connections += 1;
                std::thread::sleep(BACKOFF);
            }
            for queue in &mut self.queues {
                // All of the old connection is lost or answered; what is left goes again, or is given up.
                queue.broken = false;
                if !self.plan.idempotent {
                    queue.pending.clear();
                }
                queue.pending.iter_mut().for_each(|pending| pending.sent_at = None);
            }
        }
    }

    /// Produces over one connection until it is told to stop and all is answered, or the connection fails.
    fn connection(&mut self) -> Result<(), Failure> {
        let address = self.target.get();
        let mut client = Client::connect_with(address, self.plan.answer_within)?;
        if self.plan.idempotent && self.identity.is_none() {
            self.identity = match client.init_producer() {
                Ok(identity) => Some(identity),
                Err(Failure::Refused { code, .. }) => {
                    *self.outcome.refused.entry(code.code()).or_default() += 1;
                    std::thread::sleep(BACKOFF);
                    return Ok(());
                }
                Err(failure) => return Err(failure),
            };
        }
        let mut flights: VecDeque<Flight> = VecDeque::new();
        loop {
            let stopping = self.stop.is_set();
            let sent = self.send_one(&mut client, stopping)?;
            if let Some(flight) = sent {
                flights.push_back(flight);
                let mean = self.plan.pace.as_micros() as u64;
                if mean > 0 {
                    std::thread::sleep(Duration::from_micros(self.random.below(0..2 * mean)));
                }
                // Usually more requests are sent before the answer to the first is waited for.
                if flights.len() < IN_FLIGHT && self.random.below(0..4) != 0 {
                    continue;
                }
            }
            match flights.pop_front() {
                Some((sent, partitions)) => {
                    let answer = client.receive(sent)?;
                    self.answered(address, &partitions, &answer);
                }
                None if stopping => return Ok(()),
                None => {
                    // Everything is answered and something is broken: begin anew.
                    if self.queues.iter().any(|queue| queue.broken) {
                        std::thread::sleep(BACKOFF);
                        for queue in &mut self.queues {
                            queue.broken = false;
                        }
                    }
                }
            }
        }
    }

    /// Sends a request with a batch for each of some partitions; `None` if none may be sent now.
    fn send_one(&mut self, client: &mut Client, stopping: bool) -> Result<Option<Flight>, Failure> {
        let mut partitions = Vec::new();
        let mut data = Vec::new();
        let only = self.random.below(0..self.queues.len() as u64 + 1) as usize;
        let any_broken = self.queues.iter().any(|queue| queue.broken);
        for (index, queue) in self.queues.iter_mut().enumerate() {
            if any_broken || (only < self.plan.partitions as usize && only != index) {
                continue;
            }
            let on_their_way = queue.pending.iter().take_while(|pending| pending.sent_at.is_some()).count();
            if on_their_way >= IN_FLIGHT {
                continue;
            }
            if on_their_way == queue.pending.len() {
                if stopping {
                    continue;
                }
                let count = self.random.below(1..self.plan.records_per_batch_max + 1);
                let first = Tag { producer: self.plan.id, partition: index as i32, n: queue.next };
                queue.next += count;
                queue.pending.push_back(Pending { first, count, sent_at: None });
            }
            let pending = &mut queue.pending[on_their_way];
            pending.sent_at = Some(Instant::now());
            let producer = self.identity.map(|(id, epoch)| Producer {
                id: ProducerId(id),
                epoch,
                base_sequence: pending.first.n as i32,
            });
            let records = Some(batch(pending.first, pending.count, producer));
            data.push(PartitionProduceData { index: index as i32, records });
            partitions.push(index);
        }
        if partitions.is_empty() {
            // The one that was chosen cannot go; any that can will be found by another choice, unless none can.
            return Ok(None);
        }
        let request = ProduceRequest {
            acks: self.plan.acks,
            timeout_ms: 15_000,
            topic_data: vec![TopicProduceData {
                name: self.plan.topic.into(),
                partition_data: data,
                ..Default::default()
            }],
            ..Default::default()
        };
        Ok(Some((client.send(&request)?, partitions)))
    }

    fn answered(
        &mut self,
        by: std::net::SocketAddr,
        partitions: &[usize],
        answer: &kaas_protocol::ProduceResponse,
    ) {
        let answers = &answer.responses[0].partition_responses;
        assert_eq!(answers.len(), partitions.len(), "an answer for each partition");
        for &index in partitions {
            let answer = answers.iter().find(|answer| answer.index == index as i32).expect("its answer");
            let queue = &mut self.queues[index];
            // Answers come in the order of the requests: this is the oldest on its way that has no answer.
            let position = queue
                .pending
                .iter()
                .position(|pending| pending.sent_at.is_some())
                .expect("something on its way");
            if answer.error_code == ErrorCode::NONE {
                let pending = queue.pending.remove(position).expect("it is there");
                self.outcome.acknowledged_batches += 1;
                // acks=1 is no promise that the record stays.
                if self.plan.acks == -1 {
                    self.history.acknowledge(Acknowledged {
                        first: pending.first,
                        count: pending.count,
                        base_offset: answer.base_offset,
                        sent_at: pending.sent_at.expect("it was sent"),
                        by,
                    });
                }
                continue;
            }
            *self.outcome.refused.entry(answer.error_code.code()).or_default() += 1;
            let follows = answer.error_code == ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER;
            if (follows && !queue.broken) || (!follows && !answer.error_code.is_retriable()) {
                self.history.violation(format!(
                    "producer {} got {:?} for {:?}",
                    self.plan.id, answer.error_code, queue.pending[position].first
                ));
            }
            queue.broken = true;
            if self.plan.idempotent {
                queue.pending[position].sent_at = None;
            } else {
                queue.pending.remove(position);
            }
        }
    }
}
