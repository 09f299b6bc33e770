//! The takeover protocol of kaas (GUARANTEES.md) as a model that is small enough to be explored completely.
//!
//! A few leaders, each one run of a process at an epoch that somebody assigned (equal ones and skipped ones too),
//! share a volume. Every step of a claim, a takeover and a commit is an action of its own; nothing ever has to happen
//! soon, so a leader may be paused between any two of them for as long as it takes. Writes land when they
//! like until they are synced, also long after their leader was deposed. Hosts are lost with what they have not
//! written, the server with what it has not synced.
//!
//! What must hold in every state is in [`Takeover::properties`]. [`Flaw`] leaves out one rule of the protocol at a
//! time; the tests show that each of them is needed.
//!
//! The model knows one segment an epoch, one record a batch, and no deletions. The engine itself, with all of that,
//! is explored at random by `explorer/`.

pub mod leader;
pub mod volume;

use std::collections::BTreeMap;

use leader::{End, Leader, Serving, Step};
use stateright::{Model, Property};
use volume::{Cell, Epoch, Value, Volume};

/// The property that some state has, not every one.
pub const HAPPENS: &str = "a later leader serves behind what an earlier one had acknowledged";

/// A rule of the protocol that is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Flaw {
    /// None: the protocol as it is.
    #[default]
    None,
    /// Records are acknowledged before they are synced.
    AcknowledgeBeforeSync,
    /// The fence is asked before the sync, and not after it.
    FenceBeforeSync,
    /// A commit does not ask the fence.
    NoFence,
    /// Two leaders can claim one epoch.
    ClaimNotExclusive,
    /// A claim does not fill the records of the epochs that it skips.
    SkippedNotFilled,
    /// The log is read before the epoch is claimed.
    ScanBeforeClaim,
    /// What manifests pin is ignored: segments count up to where one of a later epoch begins.
    PinsIgnored,
    /// A manifest that is not the highest is followed.
    StaleManifest,
    /// What was inherited is not made durable before it is served.
    InheritedNotDurable,
    /// A new leader serves without asking the fence first.
    ServeWithoutAsking,
}

/// Bounds of a model.
#[derive(Debug, Clone)]
pub struct Takeover {
    /// The epoch of each leader, and the most records that it appends.
    pub leaders: Vec<(Epoch, usize)>,
    /// Most hosts that are lost.
    pub hosts_lost: usize,
    /// Most losses of power of the server.
    pub server_crashes: usize,
    pub flaw: Flaw,
}

/// A state of everything.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub volume: Volume,
    pub leaders: Vec<Leader>,
    /// What was acknowledged, or could have been read: the value at each offset.
    pub seen: BTreeMap<usize, Value>,
    /// Somebody was shown another record at an offset, or a new leader lacked one.
    pub broken: bool,
    pub hosts_lost: usize,
    pub server_crashes: usize,
}

/// What can happen next; the number is the leader's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The next step of a claim or a takeover.
    Advance(usize),
    /// A record is written to the host's memory.
    Write(usize),
    /// One of the records in the host's memory reaches the server.
    Land(usize, usize),
    /// fdatasync.
    Sync(usize),
    /// Asks the fence.
    Ask(usize),
    /// Acknowledges, and advances the high watermark.
    Acknowledge(usize),
    /// The leader's host is gone.
    LoseHost(usize),
    /// The server loses power and starts again.
    CrashServer,
}

impl Takeover {
    fn ready_to_acknowledge(&self, serving: &Serving) -> usize {
        match self.flaw {
            Flaw::AcknowledgeBeforeSync => serving.written,
            // Whoever forgets to sync before it asks will have synced, by the time it acknowledges.
            Flaw::FenceBeforeSync => serving.asked.min(serving.synced),
            Flaw::NoFence => serving.synced,
            _ => serving.asked,
        }
    }

    fn ready_to_ask(&self, serving: &Serving) -> usize {
        if self.flaw == Flaw::FenceBeforeSync { serving.written } else { serving.synced }
    }
}

impl State {
    /// Everything below a leader's high watermark is shown to consumers.
    fn show(&mut self, number: usize, taken_over: bool) {
        let Some(Leader { epoch, step: Step::Serve(serving), .. }) = self.leaders.get(number) else { return };
        let base = serving.inherited.end();
        let own = (base..base + serving.acknowledged).map(|offset| (offset, *epoch));
        let shown: BTreeMap<usize, Option<Value>> = serving
            .inherited
            .places()
            .chain(own)
            .map(|(offset, of)| (offset, self.volume.cell(of, offset).map(|cell| cell.value)))
            .collect();
        // A new leader that has just asked the fence has everything that was ever shown.
        let lacks = taken_over && self.seen.keys().any(|offset| !shown.contains_key(offset));
        self.broken |= lacks;
        for (offset, value) in shown {
            match value {
                Some(value) => self.broken |= *self.seen.entry(offset).or_insert(value) != value,
                None => self.broken = true,
            }
        }
    }

    fn crash_server(&mut self) {
        for (epoch, segment) in &mut self.volume.segments {
            let base = segment.base;
            for (offset, place) in (base..).zip(&mut segment.cells) {
                let Some(Cell { value, durable: false }) = *place else { continue };
                *place = None;
                // The client of a host that lives sends again what was not synced.
                let writer = self.leaders.iter_mut().find(|leader| {
                    leader.epoch == *epoch
                        && value / 8 == leader.id
                        && leader.step != Step::Ended(End::HostLost)
                });
                if let Some(writer) = writer {
                    writer.cache.push(offset);
                }
            }
        }
    }

    fn act(&mut self, action: Action, model: &Takeover) -> Option<()> {
        match action {
            Action::Advance(number) => {
                let leader = self.leaders.get_mut(number)?;
                leader.advance(&mut self.volume, model.flaw);
                let asked = model.flaw != Flaw::ServeWithoutAsking;
                if leader.base.is_some() {
                    self.show(number, asked);
                }
            }
            Action::Land(number, offset) => {
                let leader = self.leaders.get_mut(number)?;
                leader.cache.retain(|cached| *cached != offset);
                let base = leader.base?;
                let value = leader.value(offset - base);
                self.volume.put(leader.epoch, base, offset, Cell { value, durable: false });
            }
            Action::LoseHost(number) => {
                let leader = self.leaders.get_mut(number)?;
                leader.step = Step::Ended(End::HostLost);
                leader.cache.clear();
                self.hosts_lost += 1;
            }
            Action::CrashServer => {
                self.crash_server();
                self.server_crashes += 1;
            }
            Action::Write(number)
            | Action::Sync(number)
            | Action::Ask(number)
            | Action::Acknowledge(number) => {
                self.commit(action, number, model)?;
            }
        }
        Some(())
    }

    fn commit(&mut self, action: Action, number: usize, model: &Takeover) -> Option<()> {
        let leader = self.leaders.get_mut(number)?;
        let leads = leader.still_leads(&self.volume);
        let epoch = leader.epoch;
        let Step::Serve(serving) = &mut leader.step else { return None };
        let base = serving.inherited.end();
        match action {
            Action::Write(_) => {
                leader.cache.push(base + serving.written);
                serving.written += 1;
            }
            Action::Sync(_) => {
                serving.synced = serving.written;
                let segment = self.volume.segments.get_mut(&epoch)?;
                segment.cells.iter_mut().flatten().for_each(|cell| cell.durable = true);
            }
            Action::Ask(_) if leads => serving.asked = model.ready_to_ask(serving),
            Action::Ask(_) => leader.step = Step::Ended(End::Deposed),
            _ => {
                serving.acknowledged = model.ready_to_acknowledge(serving);
                self.show(number, false);
            }
        }
        Some(())
    }
}

impl Model for Takeover {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let leaders = (0..).zip(&self.leaders).map(|(id, (epoch, _))| Leader::new(id, *epoch)).collect();
        vec![State {
            volume: Volume::default(),
            leaders,
            seen: BTreeMap::new(),
            broken: false,
            hosts_lost: 0,
            server_crashes: 0,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for ((number, leader), (_, appends)) in state.leaders.iter().enumerate().zip(&self.leaders) {
            actions.extend(leader.cache.iter().map(|offset| Action::Land(number, *offset)));
            match &leader.step {
                Step::Ended(_) => {}
                Step::Serve(serving) => {
                    if serving.written < *appends {
                        actions.push(Action::Write(number));
                    }
                    if serving.synced < serving.written && leader.cache.is_empty() {
                        actions.push(Action::Sync(number));
                    }
                    if serving.asked < self.ready_to_ask(serving) {
                        actions.push(Action::Ask(number));
                    }
                    if serving.acknowledged < self.ready_to_acknowledge(serving) {
                        actions.push(Action::Acknowledge(number));
                    }
                }
                _ => actions.push(Action::Advance(number)),
            }
            if state.hosts_lost < self.hosts_lost
                && !matches!(leader.step, Step::Ended(_) | Step::CreateClaim)
            {
                actions.push(Action::LoseHost(number));
            }
        }
        if state.server_crashes < self.server_crashes {
            actions.push(Action::CrashServer);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        next.act(action, self)?;
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("what was acknowledged or read stays, at its offset", |_, state: &State| {
                !state.broken && state.nothing_shown_is_gone()
            }),
            Property::always(
                "a leader in office never finds a directory that cannot be",
                |_, state: &State| {
                    let damaged = |leader: &&Leader| leader.step == Step::Ended(End::Damaged);
                    !state.leaders.iter().any(|leader| damaged(&leader))
                },
            ),
            // The model would show nothing if nothing happened in it.
            Property::sometimes(HAPPENS, |_, state: &State| {
                state.leaders.iter().any(|leader| {
                    matches!(&leader.step, Step::Serve(serving) if serving.inherited.end() > 0 && serving.acknowledged > 0)
                        && state.leaders.iter().any(|other| other.epoch < leader.epoch
                            && matches!(&other.step, Step::Serve(serving) if serving.acknowledged > 0))
                })
            }),
        ]
    }
}

impl State {
    /// Consumers can read again what was shown, from every leader that still serves.
    fn nothing_shown_is_gone(&self) -> bool {
        self.leaders.iter().all(|leader| {
            let Step::Serve(serving) = &leader.step else { return true };
            let base = serving.inherited.end();
            let own = (base..base + serving.acknowledged).map(|offset| (offset, leader.epoch));
            serving.inherited.places().chain(own).all(|(offset, of)| {
                let found = self.volume.cell(of, offset).map(|cell| cell.value);
                found.is_some() && found == self.seen.get(&offset).copied()
            })
        })
    }
}
