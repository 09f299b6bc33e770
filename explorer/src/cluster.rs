//! The cluster of a run: a volume, hosts that mount it, processes, partitions and slots, and who is to lead them.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use kaas_engine::identity::{Identity, write_partition};
use kaas_engine::journal::JournalSettings;
use kaas_engine::types::{Epoch, Timestamp};
use kaas_engine::{EngineError, EngineSettings, LogConfig};
use kaas_fault_injection::simulated::Broken;
use kaas_substrate::Substrate;
use parking_lot::Mutex;

use crate::clients::Producer;
use crate::data_dir::{DataDir, TOPIC_ID, topic_dir};
use crate::history::{History, Promises};
use crate::journals::Slot;
use crate::problem::Problem;
use crate::process::{Faults, Process, START};
use crate::records::Form;
use crate::scheduler::{Scheduler, Until};
use crate::storage::{FileSystem, Storage};
use crate::transactions::Transactional;

/// Within a run; longer than that hosts' clocks differ.
const SOON_MS: i64 = 3_600_000;

/// A partition, and what is known of it.
pub struct Topic {
    pub dir: PathBuf,
    pub identity: Identity,
    pub history: Mutex<History>,
    pub form: Form,
    pub producers: Mutex<Vec<Producer>>,
    /// None, if there are no transactions.
    pub transactional: Mutex<Vec<Transactional>>,
    /// The last epoch that was assigned.
    pub assigned: AtomicU32,
    /// For values that no two records share.
    plain: AtomicU32,
}

/// What compaction may do with this configuration in the time that a run takes.
fn promises(config: &LogConfig) -> Promises {
    Promises {
        compacts: config.compact && config.min_compaction_lag_ms < SOON_MS,
        tombstones_go: config.compact && config.delete_retention_ms < SOON_MS,
    }
}

impl Topic {
    fn new(number: usize, config: &LogConfig, transactions: bool, in_data_dir: bool) -> Self {
        let identity = Identity { topic: format!("topic-{number}"), partition: 0, topic_id: TOPIC_ID };
        let dir = if in_data_dir { topic_dir(number).join("0") } else { PathBuf::from(format!("{number}")) };
        let retention = config.delete && (config.retention_bytes >= 0 || config.retention_ms < SOON_MS);
        let history = History::new(promises(config), retention);
        let transactional = if transactions { &[11, 12][..] } else { &[] };
        Self {
            dir,
            identity,
            history: Mutex::new(history),
            form: if config.compact { Form::Keyed } else { Form::Values },
            producers: Mutex::new((1..=2).map(Producer::new).collect()),
            transactional: Mutex::new(transactional.iter().copied().map(Transactional::new).collect()),
            assigned: AtomicU32::new(0),
            plain: AtomicU32::new(0),
        }
    }

    fn birth(&self, volume: &dyn Substrate) -> Result<(), EngineError> {
        volume.create_dir(&self.dir)?;
        write_partition(volume, &self.dir, &self.identity, Epoch::NONE)?;
        Ok(volume.sync_tree(&self.dir)?)
    }

    /// Shows every producer, transactional ones too.
    pub fn for_each_producer(&self, mut show: impl FnMut(&mut Producer)) {
        self.producers.lock().iter_mut().for_each(&mut show);
        self.transactional.lock().iter_mut().for_each(|transactional| show(&mut transactional.producer));
    }

    /// A marker of a producer's transaction was acknowledged.
    pub fn ended(&self, producer: i64, transaction: u32) {
        let mut transactional = self.transactional.lock();
        let its = transactional.iter_mut().filter(|other| other.producer.id() == producer);
        its.for_each(|transactional| transactional.ended(transaction));
    }

    /// Whether a leader of this epoch may meet what damage has left.
    pub fn may_meet_damage(&self, epoch: u32) -> bool {
        self.history.lock().harm.may_be_met_at(epoch)
    }

    /// A value that no other record has.
    pub fn unique_value(&self) -> String {
        format!("plain{}", self.plain.fetch_add(1, Ordering::Relaxed))
    }
}

/// Everything in a run.
pub struct Cluster {
    pub scheduler: Arc<Scheduler>,
    pub storage: Arc<Storage>,
    pub topics: Vec<Topic>,
    pub slots: Vec<Slot>,
    /// What is around them, if the volume is a whole data directory.
    pub data_dir: Option<DataDir>,
    pub settings: EngineSettings,
    pub journal_settings: JournalSettings,
    pub config: LogConfig,
    pub faults: Arc<Mutex<Faults>>,
    /// Writes may find no room.
    pub gets_full: bool,
    /// Clients do little but produce.
    pub is_busy: bool,
    pub transactions: bool,
    hosts: usize,
    processes: Mutex<Vec<Arc<Process>>>,
    /// Those that lead nothing.
    beside: Mutex<Vec<Arc<Process>>>,
    last_process: AtomicU32,
    last_leader: AtomicU32,
}

/// What a cluster is made of.
pub struct Setup {
    pub hosts: usize,
    pub topics: usize,
    pub slots: usize,
    /// The volume is a whole data directory.
    pub data_dir: bool,
    pub file_system: FileSystem,
    pub broken: Broken,
    pub settings: EngineSettings,
    pub journal_settings: JournalSettings,
    pub config: LogConfig,
    pub faults: Faults,
    pub is_busy: bool,
    /// Some producers are transactional.
    pub transactions: bool,
}

impl Cluster {
    /// A cluster on an empty volume.
    pub fn new(scheduler: &Arc<Scheduler>, setup: Setup) -> Result<Arc<Self>, EngineError> {
        let Setup {
            hosts,
            topics,
            slots,
            data_dir,
            file_system,
            broken,
            settings,
            journal_settings,
            config,
            faults,
            is_busy,
            transactions,
        } = setup;
        let none = Arc::new(Mutex::new(Faults::default()));
        let storage = Storage::new(scheduler, file_system, hosts, &none);
        let topics: Vec<_> =
            (0..topics).map(|number| Topic::new(number, &config, transactions, data_dir)).collect();
        let data_dir = data_dir.then(|| DataDir::new(topics.len()));
        if let Some(data_dir) = &data_dir {
            data_dir.birth(&storage.mount(hosts))?;
        }
        for topic in &topics {
            topic.birth(&*storage.mount(hosts))?;
        }
        *none.lock() = faults;
        storage.break_properties(broken);
        Ok(Arc::new(Self {
            scheduler: Arc::clone(scheduler),
            storage,
            topics,
            slots: (0..slots).map(Slot::new).collect(),
            data_dir,
            settings,
            journal_settings,
            config,
            gets_full: faults.full > 0,
            faults: none,
            is_busy,
            transactions,
            hosts,
            processes: Mutex::new(Vec::new()),
            beside: Mutex::new(Vec::new()),
            last_process: AtomicU32::new(0),
            last_leader: AtomicU32::new(0),
        }))
    }

    /// Starts a process on a host.
    fn start(&self, host: usize) -> Arc<Process> {
        let id = self.last_process.fetch_add(1, Ordering::Relaxed) + 1;
        self.scheduler.note(&format_args!("process {id} starts on host {host}"));
        Process::start(&self.scheduler, &self.storage, id, host, self.settings.clone(), &self.faults)
    }

    /// Starts a process on a host that nobody is told to lead in.
    pub fn start_beside(&self, host: usize) -> Arc<Process> {
        let process = self.start(host);
        self.beside.lock().push(Arc::clone(&process));
        process
    }

    /// The process of a host that lives now; one is started if there is none.
    pub fn process(&self, host: usize) -> Arc<Process> {
        let living = self.processes.lock().iter().rev().find(|process| process.host == host).cloned();
        living.filter(|process| !process.is_dead()).unwrap_or_else(|| {
            let process = self.start(host);
            self.processes.lock().push(Arc::clone(&process));
            process
        })
    }

    /// Kills the processes of some hosts.
    fn kill_on(&self, is_there: impl Fn(usize) -> bool) {
        for processes in [&self.processes, &self.beside] {
            let (gone, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut *processes.lock())
                .into_iter()
                .partition(|process| is_there(process.host));
            *processes.lock() = rest;
            gone.iter().filter(|process| !process.is_dead()).for_each(|process| process.kill());
        }
    }

    /// Kills every process.
    pub fn kill_all(&self) {
        self.kill_on(|_| true);
    }

    /// A host loses power, and its processes with it.
    pub fn crash_host(&self, host: usize) {
        self.scheduler.note(&format_args!("host {host} loses power"));
        let gone = self.storage.hosts_with(host);
        self.kill_on(|host| gone.contains(&host));
        self.storage.crash_host(host);
    }

    /// Everything loses power, and every process dies.
    pub fn lose_power(&self) {
        self.scheduler.note(&"power is lost");
        self.kill_all();
        self.storage.lose_power();
    }

    /// How much there is to be led: topics, slots, and the cluster.
    pub fn led(&self) -> usize {
        self.topics.len() + self.slots.len() + usize::from(self.data_dir.is_some())
    }

    /// Hosts that leaders run on.
    pub fn hosts(&self) -> usize {
        self.hosts
    }

    /// Another host, on which nothing has happened.
    pub fn auditor(&self) -> usize {
        self.hosts
    }

    /// A number for a leader's stream of decisions.
    pub fn next_leader(&self) -> u32 {
        self.last_leader.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// What a client's clock shows.
    pub fn client_time(&self) -> Timestamp {
        let ms = i64::try_from(self.scheduler.now().as_millis()).unwrap_or(0);
        Timestamp(START.0.saturating_add(ms))
    }

    /// Reports what is wrong, if anything is.
    pub fn check(&self, outcome: Result<(), Problem>) {
        if let Err(problem) = outcome {
            self.scheduler.report(problem);
        }
    }

    /// Waits for so many steps of others.
    pub fn wait_steps(&self, steps: u64) {
        // Only tasks of no process wait here, which never die.
        let _ = self.scheduler.leave(Until::Step(self.scheduler.steps() + steps));
    }
}
