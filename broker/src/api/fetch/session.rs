//! Fetch sessions: a consumer says once which partitions it reads, then only what changes. KIP-227.
//!
//! A pure state machine over a bounded cache: sessions by id, each with the partitions in the order in which they
//! are to be read (those that just gave records go to the end). Called from connection tasks; the lock is held
//! for memory work only. A consumer that gets no session (id 0) sends full requests, and loses nothing else.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use kaas_protocol::{ErrorCode, Uuid};
use parking_lot::Mutex;
use tokio::time::Instant;

/// "No session", on the wire.
pub const NO_SESSION: i32 = 0;
/// Epoch of a request that opens a session.
const INITIAL: i32 = 0;
/// Epoch of a request that wants none.
const FINAL: i32 = -1;

/// Bounds of the cache.
#[derive(Debug, Clone)]
pub struct Limits {
    /// `max.incremental.fetch.session.cache.slots`.
    pub sessions_max: usize,
    /// Most partitions of all sessions together.
    pub partitions_max: usize,
    /// A session unused for this long may be evicted for a new one.
    pub evictable_after: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { sessions_max: 1000, partitions_max: 100_000, evictable_after: Duration::from_secs(120) }
    }
}

/// Which partition, as the client names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key {
    /// Name of the topic; empty where the version has ids.
    pub name: Arc<str>,
    /// Id of the topic; zero where the version has names.
    pub id: Uuid,
    /// Number of the partition, as asked.
    pub partition: i32,
}

/// What is asked of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    pub key: Key,
    pub fetch_offset: i64,
    pub max_bytes: i32,
    pub current_leader_epoch: i32,
    pub last_fetched_epoch: i32,
}

/// What a partition answered, as far as sessions care.
#[derive(Debug, Clone, Copy)]
pub struct Answered {
    pub bytes: usize,
    pub high_watermark: i64,
    pub log_start: i64,
    /// An error or a diverging epoch: always worth telling.
    pub notable: bool,
    pub failed: bool,
}

/// How a request is to be served.
#[derive(Debug, PartialEq, Eq)]
pub enum Plan {
    /// Every partition is answered; `session` is what the client is told (0: none).
    Full { session: i32, wanted: Vec<Wanted> },
    /// Only partitions with news are answered. `epoch` is the session's epoch from now on.
    Incremental { session: i32, epoch: i32, wanted: Vec<Wanted> },
    /// The session cannot go on.
    Refused(ErrorCode),
}

#[derive(Debug)]
struct Session {
    epoch: i32,
    by_id: bool,
    last_used: Instant,
    next_place: u64,
    order: BTreeMap<u64, Cached>,
    places: HashMap<Key, u64>,
}

#[derive(Debug)]
struct Cached {
    wanted: Wanted,
    high_watermark: i64,
    log_start: i64,
}

#[derive(Debug, Default)]
struct Cache {
    sessions: HashMap<i32, Session>,
    partitions: usize,
}

/// All sessions of a broker.
#[derive(Debug, Default)]
pub struct Sessions {
    cache: Mutex<Cache>,
}

/// The session part of a request.
#[derive(Debug)]
pub struct Asked {
    pub session: i32,
    pub epoch: i32,
    pub by_id: bool,
    pub wanted: Vec<Wanted>,
    pub forgotten: Vec<Key>,
}

impl Sessions {
    /// Decides how to serve a request, and takes note of what it changes.
    pub fn plan(&self, asked: Asked, limits: &Limits, now: Instant) -> Plan {
        let mut cache = self.cache.lock();
        let partitions = cache.partitions;
        if asked.epoch == INITIAL || asked.epoch == FINAL {
            cache.remove(asked.session);
            let session = match asked.epoch {
                INITIAL => cache.create(&asked, limits, now),
                _ => NO_SESSION,
            };
            return Plan::Full { session, wanted: asked.wanted };
        }
        let Some(session) = cache.sessions.get_mut(&asked.session) else {
            return Plan::Refused(ErrorCode::FETCH_SESSION_ID_NOT_FOUND);
        };
        if session.epoch != asked.epoch {
            return Plan::Refused(ErrorCode::INVALID_FETCH_SESSION_EPOCH);
        }
        if session.by_id != asked.by_id {
            return Plan::Refused(ErrorCode::FETCH_SESSION_TOPIC_ID_ERROR);
        }
        let before = session.order.len();
        let full_for = limits.partitions_max.saturating_sub(partitions.saturating_sub(before));
        for wanted in &asked.wanted {
            session.put(wanted.clone());
        }
        // After what is wanted, as in Kafka: a partition that is in both lists goes.
        for key in &asked.forgotten {
            session.remove(key);
        }
        let after = session.order.len();
        session.last_used = now;
        session.epoch = next_epoch(session.epoch);
        let (epoch, wanted) = (session.epoch, session.wanted());
        cache.partitions = partitions.saturating_sub(before).saturating_add(after);
        if after == 0 || after > full_for {
            // Nothing left, or more than the cache may hold: the client goes on without a session.
            cache.remove(asked.session);
            return Plan::Full { session: NO_SESSION, wanted };
        }
        Plan::Incremental { session: asked.session, epoch, wanted }
    }

    /// Which of the answers of an incremental request are news, by index; `None` if the session has moved on
    /// meanwhile (the client sent the request twice).
    pub fn news(&self, session: i32, epoch: i32, answers: &[(Key, Answered)]) -> Option<Vec<bool>> {
        let mut cache = self.cache.lock();
        let session = cache.sessions.get_mut(&session).filter(|session| session.epoch == epoch)?;
        Some(answers.iter().map(|(key, answered)| session.take_note(key, answered)).collect())
    }

    /// Remembers what a full request that opened a session was answered.
    pub fn opened(&self, session: i32, answers: &[(Key, Answered)]) {
        if session == NO_SESSION {
            return;
        }
        if let Some(session) = self.cache.lock().sessions.get_mut(&session) {
            for (key, answered) in answers {
                session.take_note(key, answered);
            }
        }
    }

    /// Number of sessions.
    pub fn len(&self) -> usize {
        self.cache.lock().sessions.len()
    }

    /// Whether there is no session.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Cache {
    fn remove(&mut self, session: i32) {
        if let Some(removed) = self.sessions.remove(&session) {
            self.partitions = self.partitions.saturating_sub(removed.order.len());
        }
    }

    /// The id of a new session, or 0 if there is no room.
    fn create(&mut self, asked: &Asked, limits: &Limits, now: Instant) -> i32 {
        let fits = |cache: &Self| {
            cache.sessions.len() < limits.sessions_max
                && cache.partitions.saturating_add(asked.wanted.len()) <= limits.partitions_max
        };
        if asked.wanted.is_empty() {
            return NO_SESSION;
        }
        if !fits(self) {
            self.evict(limits, now);
        }
        if !fits(self) {
            return NO_SESSION;
        }
        let id = self.unused_id();
        let mut session = Session {
            epoch: next_epoch(INITIAL),
            by_id: asked.by_id,
            last_used: now,
            next_place: 0,
            order: BTreeMap::new(),
            places: HashMap::new(),
        };
        for wanted in &asked.wanted {
            session.put(wanted.clone());
        }
        self.partitions = self.partitions.saturating_add(session.order.len());
        self.sessions.insert(id, session);
        id
    }

    /// Makes room by dropping the session that has been unused for longest, if that is long enough.
    fn evict(&mut self, limits: &Limits, now: Instant) {
        let stalest = self.sessions.iter().min_by_key(|(_, session)| session.last_used);
        let stale = |session: &Session| now.duration_since(session.last_used) > limits.evictable_after;
        if let Some(id) = stalest.filter(|(_, session)| stale(session)).map(|(id, _)| *id) {
            self.remove(id);
        }
    }

    /// A random id, so that a client of an earlier process does not meet somebody else's session.
    fn unused_id(&self) -> i32 {
        loop {
            let [a, b, c, d, ..] = *uuid::Uuid::new_v4().as_bytes();
            let id = i32::from_be_bytes([a & 0x7f, b, c, d]);
            if id != NO_SESSION && !self.sessions.contains_key(&id) {
                return id;
            }
        }
    }
}

impl Session {
    fn put(&mut self, wanted: Wanted) {
        if let Some(cached) = self.places.get(&wanted.key).and_then(|place| self.order.get_mut(place)) {
            cached.wanted = wanted;
            return;
        }
        let place = self.place();
        self.places.insert(wanted.key.clone(), place);
        // No offset is -1, so the first answer is news.
        self.order.insert(place, Cached { wanted, high_watermark: -1, log_start: -1 });
    }

    fn remove(&mut self, key: &Key) {
        if let Some(place) = self.places.remove(key) {
            self.order.remove(&place);
        }
    }

    fn place(&mut self) -> u64 {
        self.next_place += 1;
        self.next_place
    }

    fn wanted(&self) -> Vec<Wanted> {
        self.order.values().map(|cached| cached.wanted.clone()).collect()
    }

    /// Remembers an answer; whether it is news.
    fn take_note(&mut self, key: &Key, answered: &Answered) -> bool {
        let Some(place) = self.places.get(key).copied() else { return true };
        let Some(cached) = self.order.get_mut(&place) else { return true };
        let news = answered.bytes > 0
            || answered.notable
            || cached.high_watermark != answered.high_watermark
            || cached.log_start != answered.log_start;
        // After an error the partition is told of again when it works again.
        cached.high_watermark = if answered.failed { -1 } else { answered.high_watermark };
        cached.log_start = answered.log_start;
        if answered.bytes > 0
            && let Some(cached) = self.order.remove(&place)
        {
            let last = self.place();
            self.places.insert(key.clone(), last);
            self.order.insert(last, cached);
        }
        news
    }
}

/// Epochs wrap to 1, since 0 opens a session.
fn next_epoch(epoch: i32) -> i32 {
    epoch.checked_add(1).unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(partition: i32) -> Key {
        Key { name: "t".into(), id: Uuid::ZERO, partition }
    }

    fn wanted(partition: i32, fetch_offset: i64) -> Wanted {
        Wanted {
            key: key(partition),
            fetch_offset,
            max_bytes: 1,
            current_leader_epoch: -1,
            last_fetched_epoch: -1,
        }
    }

    fn asked(session: i32, epoch: i32, partitions: &[(i32, i64)]) -> Asked {
        let wanted = partitions.iter().map(|(partition, offset)| wanted(*partition, *offset)).collect();
        Asked { session, epoch, by_id: false, wanted, forgotten: Vec::new() }
    }

    fn answer(bytes: usize, high_watermark: i64) -> Answered {
        Answered { bytes, high_watermark, log_start: 0, notable: false, failed: false }
    }

    fn open(sessions: &Sessions, limits: &Limits, partitions: &[(i32, i64)]) -> i32 {
        match sessions.plan(asked(0, 0, partitions), limits, Instant::now()) {
            Plan::Full { session, .. } => session,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_news_is_told_and_partitions_with_records_go_last() {
        let sessions = Sessions::default();
        let limits = Limits::default();
        let id = open(&sessions, &limits, &[(0, 0), (1, 0), (2, 0)]);
        assert_ne!(id, NO_SESSION);
        sessions.opened(id, &[(key(0), answer(0, 5)), (key(1), answer(0, 5)), (key(2), answer(0, 5))]);

        let plan = sessions.plan(asked(id, 1, &[(1, 7)]), &limits, Instant::now());
        let Plan::Incremental { session, epoch: 2, wanted: all } = plan else { panic!("{plan:?}") };
        assert_eq!(all, [wanted(0, 0), wanted(1, 7), wanted(2, 0)]);
        let failed = Answered { notable: true, failed: true, ..answer(0, 5) };
        let answers = [(key(0), answer(10, 5)), (key(1), answer(0, 5)), (key(2), failed)];
        assert_eq!(sessions.news(session, 2, &answers), Some(vec![true, false, true]));

        let plan = sessions.plan(asked(id, 2, &[]), &limits, Instant::now());
        let Plan::Incremental { wanted: all, .. } = plan else { panic!("{plan:?}") };
        assert_eq!(all.iter().map(|w| w.key.partition).collect::<Vec<_>>(), [1, 2, 0]);
        let answers = [(key(1), answer(0, 6)), (key(2), answer(0, 5)), (key(0), answer(0, 5))];
        assert_eq!(sessions.news(session, 3, &answers), Some(vec![true, true, false]));
        assert_eq!(sessions.news(session, 2, &answers), None, "the session has moved on");
    }

    #[test]
    fn wrong_ids_epochs_and_naming_are_refused() {
        let sessions = Sessions::default();
        let limits = Limits::default();
        let id = open(&sessions, &limits, &[(0, 0)]);
        let now = Instant::now();
        let refused = |asked: Asked| match sessions.plan(asked, &limits, now) {
            Plan::Refused(code) => code,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(asked(id.wrapping_add(1), 1, &[])), ErrorCode::FETCH_SESSION_ID_NOT_FOUND);
        assert_eq!(refused(asked(id, 2, &[])), ErrorCode::INVALID_FETCH_SESSION_EPOCH);
        let by_id = Asked { by_id: true, ..asked(id, 1, &[]) };
        assert_eq!(refused(by_id), ErrorCode::FETCH_SESSION_TOPIC_ID_ERROR);
    }

    #[test]
    fn forgetting_everything_ends_the_session() {
        let sessions = Sessions::default();
        let limits = Limits::default();
        let id = open(&sessions, &limits, &[(0, 0), (1, 0)]);
        let forget = Asked { forgotten: vec![key(0)], ..asked(id, 1, &[]) };
        assert!(
            matches!(sessions.plan(forget, &limits, Instant::now()), Plan::Incremental { wanted, .. } if wanted.len() == 1)
        );
        let forget = Asked { forgotten: vec![key(1)], ..asked(id, 2, &[]) };
        assert!(matches!(
            sessions.plan(forget, &limits, Instant::now()),
            Plan::Full { session: NO_SESSION, .. }
        ));
        assert!(sessions.is_empty());
        assert_eq!(sessions.cache.lock().partitions, 0);
    }

    #[test]
    fn the_cache_is_bounded_and_evicts_only_the_stale() {
        let sessions = Sessions::default();
        let limits = Limits { sessions_max: 2, ..Limits::default() };
        let first = open(&sessions, &limits, &[(0, 0)]);
        let _second = open(&sessions, &limits, &[(0, 0)]);
        assert_eq!(open(&sessions, &limits, &[(0, 0)]), NO_SESSION);
        let later = Instant::now() + Duration::from_secs(121);
        let plan = sessions.plan(asked(0, 0, &[(0, 0)]), &limits, later);
        assert!(matches!(plan, Plan::Full { session, .. } if session != NO_SESSION));
        assert!(sessions.len() <= 2);
        assert!(matches!(sessions.plan(asked(first, 1, &[]), &limits, later), Plan::Refused(_)));
        let limits = Limits { partitions_max: 3, ..Limits::default() };
        let sessions = Sessions::default();
        let id = open(&sessions, &limits, &[(0, 0), (1, 0)]);
        let grown = sessions.plan(asked(id, 1, &[(2, 0), (3, 0)]), &limits, Instant::now());
        assert!(matches!(grown, Plan::Full { session: NO_SESSION, wanted } if wanted.len() == 4));
    }

    #[test]
    fn a_full_request_replaces_or_closes_the_session_it_names() {
        let sessions = Sessions::default();
        let limits = Limits::default();
        let id = open(&sessions, &limits, &[(0, 0)]);
        let plan = sessions.plan(asked(id, FINAL, &[(0, 0)]), &limits, Instant::now());
        assert!(matches!(plan, Plan::Full { session: NO_SESSION, .. }));
        assert!(sessions.is_empty());
        assert_eq!(next_epoch(i32::MAX), 1);
    }
}
