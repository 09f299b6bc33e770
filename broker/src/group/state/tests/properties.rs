//! Random histories of several clients: what must hold whatever happens.
//!
//! - every request is answered exactly once, at the latest when the slot is unloaded;
//! - a generation has one leader, one protocol and, once handed out, one assignment;
//! - generations only grow;
//! - an acknowledged offset is what the journal brings back, and so is a stable membership.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::sim::*;
use crate::group::state::*;

#[derive(Debug, Clone)]
enum Step {
    /// Client joins with whatever id it has.
    Join(usize),
    /// Client changes its subscription and joins.
    Resubscribe(usize),
    /// Client forgets its id, as after a crash.
    Crash(usize),
    Sync(usize),
    Heartbeat(usize),
    Leave(usize),
    Commit(usize, i64),
    Advance(u64),
    /// The oldest append completes.
    Persisted,
    /// The oldest append fails.
    Failed,
    Expire,
    Restart,
}

const CLIENTS: usize = 4;

fn step() -> impl Strategy<Value = Step> {
    let client = 0..CLIENTS;
    prop_oneof![
        6 => client.clone().prop_map(Step::Join),
        1 => client.clone().prop_map(Step::Resubscribe),
        1 => client.clone().prop_map(Step::Crash),
        6 => client.clone().prop_map(Step::Sync),
        2 => client.clone().prop_map(Step::Heartbeat),
        1 => client.clone().prop_map(Step::Leave),
        3 => (client, 0..1_000_i64).prop_map(|(client, offset)| Step::Commit(client, offset)),
        4 => prop_oneof![Just(1), Just(3_000), Just(6_000), Just(61_000)].prop_map(Step::Advance),
        6 => Just(Step::Persisted),
        1 => Just(Step::Failed),
        1 => Just(Step::Expire),
        1 => Just(Step::Restart),
    ]
}

/// A client: the first two are static.
#[derive(Debug, Default, Clone)]
struct Client {
    member_id: String,
    generation: i32,
    topics: u64,
    waiting: Option<Token>,
}

struct History {
    sim: Sim,
    clients: Vec<Client>,
    fresh: u64,
    /// Requests without an answer yet.
    open: Vec<Token>,
    /// Tokens whose answers have been looked at.
    seen: std::collections::BTreeSet<Token>,
    /// Leader and protocol by generation; since the last restart for those that never became durable.
    generations: BTreeMap<i32, (String, Option<String>)>,
    /// Which SyncGroup each generation's assignments come from.
    assigned: BTreeMap<i32, String>,
    highest_generation: i32,
    acknowledged: BTreeMap<i32, i64>,
    commits: BTreeMap<Token, (i32, i64)>,
    /// Commits in the order of their appends; a later one may overwrite an acknowledged one when it lands.
    latest: BTreeMap<i32, i64>,
}

impl History {
    fn new() -> Self {
        let mut sim = Sim::new(config());
        sim.auto_persist = false;
        Self {
            sim,
            clients: vec![Client::default(); CLIENTS],
            fresh: 0,
            open: Vec::new(),
            seen: std::collections::BTreeSet::new(),
            generations: BTreeMap::new(),
            assigned: BTreeMap::new(),
            highest_generation: 0,
            acknowledged: BTreeMap::new(),
            commits: BTreeMap::new(),
            latest: BTreeMap::new(),
        }
    }

    fn instance(client: usize) -> Option<String> {
        (client < 2).then(|| format!("instance-{client}"))
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Join(client) => self.join(client),
            Step::Resubscribe(client) => {
                self.clients[client].topics += 1;
                self.join(client);
            }
            Step::Crash(client) => {
                let topics = self.clients[client].topics;
                self.clients[client] = Client { topics, ..Client::default() };
            }
            Step::Sync(client) => self.sync(client),
            Step::Heartbeat(client) => {
                let (id, generation) =
                    (self.clients[client].member_id.clone(), self.clients[client].generation);
                let answer = self.sim.heartbeat_static(&id, generation, Self::instance(client).as_deref());
                self.forget_if_unknown(client, answer.err());
            }
            Step::Leave(client) => {
                let id = self.clients[client].member_id.clone();
                self.sim.leave(&[(&id, Self::instance(client).as_deref())]);
                self.clients[client].member_id.clear();
            }
            Step::Commit(client, offset) => self.commit(client, offset),
            Step::Advance(ms) => self.sim.advance(ms),
            Step::Persisted => self.sim.persist_one(Ok(())),
            Step::Failed => self.sim.persist_one(Err(GroupError::CoordinatorNotAvailable)),
            Step::Expire => self.sim.expire(),
            Step::Restart => self.restart(),
        }
        self.look();
        self.check_group();
    }

    fn join(&mut self, client: usize) {
        self.fresh += 1;
        let state = &self.clients[client];
        let topic = format!("topic-{}", state.topics);
        let request = JoinRequest {
            group_instance_id: Self::instance(client),
            fresh_id: format!("{}", self.fresh),
            protocols: vec![Protocol { name: "range".into(), metadata: subscription(&[&topic]) }],
            supports_skipping_assignment: client == 0,
            ..join(&format!("client-{client}"), &state.member_id)
        };
        let token = self.sim.join(request);
        self.open.push(token);
        self.clients[client].waiting = Some(token);
    }

    fn sync(&mut self, client: usize) {
        let state = self.clients[client].clone();
        let members: Vec<String> =
            self.sim.slot.describe("g").members.iter().map(|member| member.member_id.to_string()).collect();
        let assignments = members
            .iter()
            .map(|id| (id.clone(), format!("{}:{}:{id}", state.generation, state.member_id).into()))
            .collect();
        let request = SyncRequest {
            assignments,
            group_instance_id: Self::instance(client),
            ..sync(&state.member_id, state.generation)
        };
        let token = self.sim.sync(request);
        self.open.push(token);
    }

    fn commit(&mut self, client: usize, offset: i64) {
        let state = self.clients[client].clone();
        let partition = i32::try_from(client).unwrap();
        let mut request = commit(&state.member_id, state.generation, offset);
        request.group_instance_id = Self::instance(client);
        request.topics[0].partitions[0].partition = partition;
        let before = self.sim.in_flight.len();
        let token = self.sim.commit(request);
        self.open.push(token);
        if self.sim.in_flight.len() > before {
            self.commits.insert(token, (partition, offset));
        }
    }

    fn restart(&mut self) {
        // Every append that was on its way is lost or not; here it is lost.
        self.sim.unload();
        self.look();
        let mut sim = self.sim.restarted(config());
        sim.auto_persist = false;
        self.sim = sim;
        // Answers of the old process are all there; generations that were not durable may be given out again.
        self.seen.clear();
        self.open.clear();
        let durable = self.sim.slot.group("g").map_or(0, |group| group.generation_id);
        self.highest_generation = durable;
        self.generations.retain(|generation, _| *generation <= durable);
        self.assigned.retain(|generation, _| *generation <= durable);
        for client in &mut self.clients {
            client.waiting = None;
        }
        for (partition, offset) in &self.acknowledged {
            assert_eq!(self.sim.offset("t", *partition), *offset, "partition {partition} after a restart");
        }
    }

    fn forget_if_unknown(&mut self, client: usize, error: Option<GroupError>) {
        if matches!(error, Some(GroupError::UnknownMemberId | GroupError::FencedInstanceId)) {
            self.clients[client].member_id.clear();
        }
    }

    /// Looks at new answers.
    fn look(&mut self) {
        let new: Vec<(Token, Response)> = self
            .sim
            .answers
            .iter()
            .filter(|(token, _)| !self.seen.contains(token))
            .map(|(token, response)| (*token, response.clone()))
            .collect();
        for (token, response) in new {
            self.seen.insert(token);
            self.open.retain(|open| *open != token);
            match response {
                Response::Join(response) => self.look_at_join(token, &response),
                Response::Sync(response) if response.error.is_none() => self.look_at_sync(&response),
                Response::OffsetCommit(response) => {
                    if let Some((partition, offset)) = self.commits.remove(&token)
                        && response.topics[0].1[0].1.is_none()
                    {
                        self.acknowledged.insert(partition, offset);
                        self.latest.insert(partition, offset);
                    }
                }
                _ => {}
            }
        }
    }

    fn look_at_join(&mut self, token: Token, response: &JoinResponse) {
        let client = self.clients.iter().position(|client| client.waiting == Some(token));
        if response.error.is_none() {
            let generation = response.generation_id;
            assert!(generation >= self.highest_generation, "generation {generation} went backwards");
            self.highest_generation = generation;
            let of_generation = (response.leader.clone(), response.protocol_name.clone());
            let first = self.generations.entry(generation).or_insert_with(|| of_generation.clone());
            assert_eq!(first.1, of_generation.1, "one protocol a generation");
            if !response.members.is_empty() {
                assert_eq!(response.leader, response.member_id, "members go to the leader only");
                assert!(response.members.iter().any(|member| *member.member_id == *response.member_id));
            }
        }
        let Some(client) = client else { return };
        self.clients[client].waiting = None;
        match response.error {
            None => {
                self.clients[client].member_id.clone_from(&response.member_id);
                self.clients[client].generation = response.generation_id;
            }
            Some(GroupError::MemberIdRequired) => {
                self.clients[client].member_id.clone_from(&response.member_id);
            }
            error => self.forget_if_unknown(client, error),
        }
    }

    fn look_at_sync(&mut self, response: &SyncResponse) {
        let text = String::from_utf8(response.assignment.to_vec()).unwrap();
        let mut parts = text.splitn(3, ':');
        let (Some(generation), Some(author)) = (parts.next(), parts.next()) else {
            return; // Left out by a leader that did not know the member.
        };
        let generation: i32 = generation.parse().unwrap();
        let first = self.assigned.entry(generation).or_insert_with(|| author.to_owned());
        assert_eq!(first, author, "one assignment a generation");
    }

    fn check_group(&mut self) {
        let Some(group) = self.sim.slot.group("g") else {
            // A group that was deleted begins anew.
            self.highest_generation = 0;
            self.generations.clear();
            self.assigned.clear();
            return;
        };
        let empty = group.members.is_empty();
        match group.state {
            GroupState::Empty => assert!(empty),
            GroupState::Stable | GroupState::CompletingRebalance => {
                assert!(!empty);
                let leader = group.leader_id.as_ref().expect("a leader");
                assert!(group.members.contains_key(leader));
                assert!(group.protocol_name.is_some());
            }
            GroupState::PreparingRebalance | GroupState::Dead => {}
        }
        for (instance, member) in &group.static_members {
            assert_eq!(group.members[member].group_instance_id.as_ref(), Some(instance));
        }
        let statics = group.members.values().filter(|member| member.is_static()).count();
        assert_eq!(statics, group.static_members.len());
        for member in group.members.values() {
            let awaiting_sync_ok = group.state == GroupState::CompletingRebalance;
            assert!(member.awaiting_sync.is_none() || awaiting_sync_ok);
            assert!(!group.pending_join.contains(&member.id));
        }
        assert!(group.pending_sync.iter().all(|id| group.members.contains_key(id)));
        for (partition, offset) in &self.latest {
            assert_eq!(self.sim.offset("t", *partition), *offset);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn histories(steps in prop::collection::vec(step(), 1..120)) {
        let mut history = History::new();
        for step in steps {
            history.step(step);
        }
        history.sim.unload();
        history.look();
        prop_assert!(history.open.is_empty(), "never answered: {:?}", history.open);
    }
}
