//! A slot without threads: time is a number, the journal is a list, answers are collected by token.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::group::state::*;

pub struct Sim {
    pub slot: SlotState,
    pub now_ms: u64,
    pub wall_ms: i64,
    next: u64,
    pub answers: BTreeMap<Token, Response>,
    /// Durable records, in order.
    pub journal: Vec<Record>,
    pub in_flight: Vec<(PersistId, Vec<Record>)>,
    /// Appends become durable at once.
    pub auto_persist: bool,
}

pub const WALL: i64 = 1_700_000_000_000;

pub fn config() -> GroupConfig {
    GroupConfig { slots: 1, ..GroupConfig::default() }
}

impl Sim {
    pub fn new(config: GroupConfig) -> Self {
        Self {
            slot: SlotState::new(0, Arc::new(config)),
            now_ms: 1_000,
            wall_ms: WALL,
            next: 0,
            answers: BTreeMap::new(),
            journal: Vec::new(),
            in_flight: Vec::new(),
            auto_persist: true,
        }
    }

    /// The same journal in a new process.
    pub fn restarted(&self, config: GroupConfig) -> Self {
        let mut sim = Self::new(config);
        sim.now_ms = 77;
        sim.wall_ms = self.wall_ms;
        sim.next = 1_000_000;
        for record in &self.journal {
            sim.slot.replay(record.clone(), sim.now()).unwrap();
        }
        sim.journal.clone_from(&self.journal);
        let mut effects = Vec::new();
        sim.slot.loaded(sim.now(), &mut effects);
        sim.run(effects);
        sim
    }

    pub fn now(&self) -> Now {
        Now { monotonic_ms: self.now_ms, wall_ms: self.wall_ms }
    }

    pub fn token(&mut self) -> Token {
        self.next += 1;
        Token(self.next)
    }

    pub fn run(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Reply { token, response } => {
                    let twice = self.answers.insert(token, response);
                    assert!(twice.is_none(), "{token:?} was answered twice");
                }
                Effect::Persist { id, records } => self.in_flight.push((id, records)),
            }
        }
        while self.auto_persist && !self.in_flight.is_empty() {
            self.persist_one(Ok(()));
        }
    }

    pub fn persist_one(&mut self, outcome: PersistOutcome) {
        if self.in_flight.is_empty() {
            return;
        }
        let (id, records) = self.in_flight.remove(0);
        if outcome.is_ok() {
            self.journal.extend(records);
        }
        let mut effects = Vec::new();
        self.slot.persisted(id, outcome, self.now(), &mut effects);
        self.run(effects);
    }

    pub fn advance(&mut self, ms: u64) {
        let end = self.now_ms + ms;
        while let Some(deadline) = self.slot.next_deadline().filter(|deadline| *deadline <= end) {
            let step = deadline.max(self.now_ms) - self.now_ms;
            self.now_ms += step;
            self.wall_ms += i64::try_from(step).unwrap();
            let mut effects = Vec::new();
            self.slot.fire(self.now(), &mut effects);
            self.run(effects);
        }
        self.wall_ms += i64::try_from(end - self.now_ms).unwrap();
        self.now_ms = end;
    }

    pub fn join(&mut self, request: JoinRequest) -> Token {
        let token = self.token();
        let mut effects = Vec::new();
        self.slot.join(request, token, self.now(), &mut effects);
        self.run(effects);
        token
    }

    pub fn sync(&mut self, request: SyncRequest) -> Token {
        let token = self.token();
        let mut effects = Vec::new();
        self.slot.sync(request, token, self.now(), &mut effects);
        self.run(effects);
        token
    }

    pub fn heartbeat(&mut self, member_id: &str, generation_id: i32) -> Result<(), GroupError> {
        self.heartbeat_static(member_id, generation_id, None)
    }

    pub fn heartbeat_static(
        &mut self,
        member_id: &str,
        generation_id: i32,
        instance: Option<&str>,
    ) -> Result<(), GroupError> {
        let request = HeartbeatRequest {
            group_id: "g".into(),
            generation_id,
            member_id: member_id.into(),
            group_instance_id: instance.map(Into::into),
        };
        let mut effects = Vec::new();
        let answer = self.slot.heartbeat(&request, self.now(), &mut effects);
        self.run(effects);
        answer
    }

    pub fn leave(&mut self, members: &[(&str, Option<&str>)]) -> LeaveResponse {
        let members = members
            .iter()
            .map(|(id, instance)| LeavingMember {
                member_id: (*id).into(),
                group_instance_id: instance.map(Into::into),
                reason: None,
            })
            .collect();
        let mut effects = Vec::new();
        let request = LeaveRequest { group_id: "g".into(), members };
        let answer = self.slot.leave(&request, self.now(), &mut effects);
        self.run(effects);
        answer
    }

    pub fn commit(&mut self, request: OffsetCommitRequest) -> Token {
        let token = self.token();
        let mut effects = Vec::new();
        self.slot.offset_commit(request, token, self.now(), &mut effects);
        self.run(effects);
        token
    }

    pub fn delete_groups(&mut self, ids: &[&str]) -> Token {
        let token = self.token();
        let ids: Vec<String> = ids.iter().map(|id| (*id).to_owned()).collect();
        let mut effects = Vec::new();
        self.slot.delete_groups(&ids, token, self.now(), &mut effects);
        self.run(effects);
        token
    }

    pub fn offset_delete(&mut self, topics: &[(&str, &[i32])]) -> Token {
        let token = self.token();
        let topics = topics.iter().map(|(name, partitions)| ((*name).into(), partitions.to_vec())).collect();
        let request = OffsetDeleteRequest { group_id: "g".into(), topics };
        let mut effects = Vec::new();
        self.slot.offset_delete(request, token, self.now(), &mut effects);
        self.run(effects);
        token
    }

    pub fn expire(&mut self) {
        let mut effects = Vec::new();
        self.slot.expire_offsets(self.now(), &mut effects);
        self.run(effects);
    }

    pub fn unload(&mut self) {
        let mut effects = Vec::new();
        self.slot.unload(GroupError::NotCoordinator, self.now(), &mut effects);
        self.in_flight.clear();
        self.run(effects);
    }

    pub fn offset(&self, topic: &str, partition: i32) -> i64 {
        let request = OffsetFetchRequest {
            group_id: "g".into(),
            topics: Some(vec![(topic.into(), vec![partition])]),
            require_stable: false,
        };
        self.slot.offset_fetch(&request).topics[0].1[0].offset
    }

    pub fn state(&self) -> &'static str {
        self.slot.describe("g").state
    }

    pub fn waits(&self, token: Token) -> bool {
        !self.answers.contains_key(&token)
    }

    pub fn joined(&self, token: Token) -> &JoinResponse {
        match self.answers.get(&token) {
            Some(Response::Join(response)) => response,
            other => panic!("no join answer but {other:?}"),
        }
    }

    pub fn synced(&self, token: Token) -> &SyncResponse {
        match self.answers.get(&token) {
            Some(Response::Sync(response)) => response,
            other => panic!("no sync answer but {other:?}"),
        }
    }

    /// The error of every partition of a commit; all the same.
    pub fn committed(&self, token: Token) -> Option<GroupError> {
        match self.answers.get(&token) {
            Some(Response::OffsetCommit(response)) => {
                let errors: Vec<_> = response.topics.iter().flat_map(|t| t.1.iter().map(|p| p.1)).collect();
                assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
                errors[0]
            }
            other => panic!("no commit answer but {other:?}"),
        }
    }

    /// A dynamic member that has been told its id and has sent its second JoinGroup.
    pub fn dynamic(&mut self, name: &str) -> (String, Token) {
        let first = self.join(join(name, ""));
        let id = self.joined(first).member_id.clone();
        assert_eq!(self.joined(first).error, Some(GroupError::MemberIdRequired));
        let token = self.join(join(name, &id));
        (id, token)
    }

    /// A stable group of dynamic members with these names; their ids, the leader first. Generation 1.
    pub fn stable(&mut self, names: &[&str]) -> Vec<String> {
        let joins: Vec<(String, Token)> = names.iter().map(|name| self.dynamic(name)).collect();
        self.advance(300_000.min(u64::try_from(names.len()).unwrap() * 3_000 + 3_000));
        let ids: Vec<String> = joins.iter().map(|(id, _)| id.clone()).collect();
        for (id, token) in &joins {
            let answer = self.joined(*token);
            assert_eq!((answer.error, answer.leader.as_str()), (None, ids[0].as_str()), "{id}");
        }
        let generation = self.joined(joins[0].1).generation_id;
        self.sync_all(&ids, generation);
        ids
    }

    /// Everyone syncs, the leader last; asserts the assignments.
    pub fn sync_all(&mut self, ids: &[String], generation: i32) {
        let mut tokens = Vec::new();
        for id in ids.iter().skip(1) {
            let token = self.sync(sync(id, generation));
            assert!(self.waits(token));
            tokens.push((id.clone(), token));
        }
        let token = self.sync(lead(&ids[0], generation, ids));
        tokens.push((ids[0].clone(), token));
        for (id, token) in tokens {
            let answer = self.synced(token);
            assert_eq!(answer.error, None);
            assert_eq!(answer.assignment, assignment(&id, generation));
        }
        assert_eq!(self.state(), "Stable");
    }
}

pub fn assignment(member_id: &str, generation: i32) -> Bytes {
    Bytes::from(format!("{member_id}@{generation}"))
}

/// A consumer's subscription to topic `t`.
pub fn subscription(topics: &[&str]) -> Bytes {
    let mut out = vec![0, 1];
    out.extend(u32::try_from(topics.len()).unwrap().to_be_bytes());
    for topic in topics {
        out.extend(u16::try_from(topic.len()).unwrap().to_be_bytes());
        out.extend(topic.as_bytes());
    }
    out.extend([0xff, 0xff, 0xff, 0xff]);
    Bytes::from(out)
}

pub fn join(name: &str, member_id: &str) -> JoinRequest {
    JoinRequest {
        group_id: "g".into(),
        member_id: member_id.into(),
        group_instance_id: None,
        client_id: name.into(),
        client_host: "/127.0.0.1".into(),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 60_000,
        protocol_type: "consumer".into(),
        protocols: vec![Protocol { name: "range".into(), metadata: subscription(&["t"]) }],
        reason: None,
        requires_known_member_id: true,
        supports_skipping_assignment: true,
        fresh_id: format!("fresh-{name}"),
    }
}

pub fn join_static(instance: &str, member_id: &str, fresh: &str) -> JoinRequest {
    JoinRequest {
        group_instance_id: Some(instance.into()),
        fresh_id: fresh.into(),
        ..join("client", member_id)
    }
}

pub fn sync(member_id: &str, generation: i32) -> SyncRequest {
    SyncRequest {
        group_id: "g".into(),
        generation_id: generation,
        member_id: member_id.into(),
        group_instance_id: None,
        protocol_type: Some("consumer".into()),
        protocol_name: Some("range".into()),
        assignments: Vec::new(),
    }
}

/// The leader's SyncGroup with an assignment for all.
pub fn lead(member_id: &str, generation: i32, ids: &[String]) -> SyncRequest {
    let assignments = ids.iter().map(|id| (id.clone(), assignment(id, generation))).collect();
    SyncRequest { assignments, ..sync(member_id, generation) }
}

pub fn commit(member_id: &str, generation: i32, offset: i64) -> OffsetCommitRequest {
    OffsetCommitRequest {
        group_id: "g".into(),
        generation_id: generation,
        member_id: member_id.into(),
        group_instance_id: None,
        retention_time_ms: None,
        topics: vec![CommitTopic {
            name: "t".into(),
            partitions: vec![CommitPartition {
                partition: 0,
                offset,
                leader_epoch: Some(3),
                metadata: Some("note".into()),
            }],
        }],
        knows_group_id_not_found: true,
    }
}
