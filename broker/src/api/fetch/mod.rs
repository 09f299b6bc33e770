//! Fetch: reading record batches. KIP-74 (limits), 98 (isolation), 227 (sessions), 320 and 595 (epochs,
//! divergence), 516 (topics by id).
//!
//! A request reads what is there; if that is too little it parks on the partitions it watches and reads again when
//! one of them has moved on, until `max_wait_ms`. Reads at the tail come from memory; the rest is read on an I/O
//! thread, or named as a range of a file that the connection sends.

mod answer;
mod read;
mod session;

use std::sync::Arc;
use std::time::Duration;

use kaas_protocol::messages::fetch::FetchTopic;
use kaas_protocol::{ErrorCode, FetchRequest, FetchResponse};
use tokio::time::{Instant, timeout_at};

pub use session::{Limits as SessionLimits, Sessions};

use self::answer::Answer;
use self::read::{Bounds, Round, Target};
use self::session::{Asked, Key, NO_SESSION, Plan, Wanted};
use super::Context;
use crate::net::Phase;
use crate::partitions::Wake;

/// First version that names topics by id.
const IDS_SINCE: i16 = 13;

/// Reads, waits if need be, answers.
pub async fn handle(context: Context, request: FetchRequest) -> FetchResponse {
    let bounds = Bounds::of(&context, &request);
    let wait = Duration::from_millis(u64::try_from(request.max_wait_ms).unwrap_or(0));
    let deadline = Instant::now() + wait;
    let plan =
        context.broker.fetch_sessions.plan(asked(&context, request), &limits(&context), Instant::now());
    let (session, epoch, wanted) = match plan {
        Plan::Full { session, wanted } => (session, None, wanted),
        Plan::Incremental { session, epoch, wanted } => (session, Some(epoch), wanted),
        Plan::Refused(error_code) => return FetchResponse { error_code, ..FetchResponse::default() },
    };
    let targets = read::find(&context, wanted).await;
    let round = read_or_wait(&context, &targets, &bounds, deadline).await;
    let answers = answer::build(&context, &targets, round);
    respond(&context, session, epoch, answers)
}

fn limits(context: &Context) -> SessionLimits {
    let slots = context.broker.configs().effective.max_incremental_fetch_session_cache_slots;
    SessionLimits { sessions_max: usize::try_from(slots).unwrap_or(usize::MAX), ..SessionLimits::default() }
}

fn asked(context: &Context, request: FetchRequest) -> Asked {
    let by_id = context.version >= IDS_SINCE;
    let sessions_exist = context.version >= 7;
    let forgotten = request.forgotten_topics_data.iter().flat_map(|topic| {
        let name: Arc<str> = topic.topic.as_str().into();
        let id = topic.topic_id;
        topic.partitions.iter().map(move |partition| Key {
            name: Arc::clone(&name),
            id,
            partition: *partition,
        })
    });
    Asked {
        session: request.session_id,
        epoch: if sessions_exist { request.session_epoch } else { -1 },
        by_id,
        forgotten: forgotten.collect(),
        wanted: request.topics.iter().flat_map(wanted).collect(),
    }
}

fn wanted(topic: &FetchTopic) -> impl Iterator<Item = Wanted> {
    // A copy: sessions outlive the frame.
    let name: Arc<str> = topic.topic.as_str().into();
    topic.partitions.iter().map(move |partition| Wanted {
        key: Key { name: Arc::clone(&name), id: topic.topic_id, partition: partition.partition },
        fetch_offset: partition.fetch_offset,
        max_bytes: partition.partition_max_bytes,
        current_leader_epoch: partition.current_leader_epoch,
        last_fetched_epoch: partition.last_fetched_epoch,
    })
}

async fn read_or_wait(context: &Context, targets: &[Target], bounds: &Bounds, deadline: Instant) -> Round {
    let round = read::round(context, targets, bounds).await;
    if round.is_enough(bounds) || targets.is_empty() || deadline <= Instant::now() {
        return round;
    }
    let shutdown = context.broker.shutdown.clone();
    let mut wake = Wake::default();
    for target in targets {
        if let Ok(partition) = &target.partition {
            wake.watch(partition);
        }
    }
    // What happened before the watches were set is seen by this look.
    let mut round = if round.is_stale(targets) { read::round(context, targets, bounds).await } else { round };
    while !round.is_enough(bounds) {
        let woken = tokio::select! {
            biased;
            () = shutdown.reached(Phase::Draining) => false,
            woken = timeout_at(deadline, wake.wait()) => woken.is_ok(),
        };
        if !woken {
            break;
        }
        if round.is_stale(targets) {
            round = read::round(context, targets, bounds).await;
        }
    }
    round
}

fn respond(context: &Context, session: i32, epoch: Option<i32>, answers: Vec<Answer>) -> FetchResponse {
    let sessions = &context.broker.fetch_sessions;
    let notes: Vec<_> = answers.iter().map(|answer| (answer.key.clone(), answer.note())).collect();
    let news = match epoch {
        None => {
            sessions.opened(session, &notes);
            vec![true; answers.len()]
        }
        Some(epoch) => match sessions.news(session, epoch, &notes) {
            Some(news) => news,
            None => {
                return FetchResponse {
                    error_code: ErrorCode::INVALID_FETCH_SESSION_EPOCH,
                    session_id: session,
                    ..FetchResponse::default()
                };
            }
        },
    };
    let told = answers.into_iter().zip(news).filter_map(|(answer, news)| news.then_some(answer));
    let session_id = if context.version >= 7 { session } else { NO_SESSION };
    answer::response(context, session_id, told)
}
