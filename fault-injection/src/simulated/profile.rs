//! Which file system the volume behaves as: one switch for each cache, and one for each property of the substrate.

use kaas_substrate::Sharing;

/// How the volume behaves. Times are of the simulation's clock, in milliseconds. Start from one of the functions and
/// change what a test is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    pub sharing: Sharing,
    /// A name that was looked up and was not there stays "not found" for its host this long, unless the host lists the
    /// directory or creates the name itself. 0: always asks.
    pub absent_name_ms: u64,
    /// For this long after a name was looked up, opening it on that host may give the file that it stood for then.
    /// 0: never.
    pub known_name_ms: u64,
    /// For this long after a host has seen a file's length and version, its handles neither see a new length nor drop
    /// cached pages. 0: every call sees the newest.
    pub attributes_ms: u64,
    /// Dirty pages that are this old are sent to the server when the clock is moved.
    pub write_back_ms: u64,
    /// Opening a file drops cached pages of an older version (the "open" of close-to-open).
    pub opens_revalidate: bool,
    /// Closing a file sends its dirty pages (the "close" of close-to-open).
    pub closes_flush: bool,
    /// What a host sends stays in the memory of the server until that host commits it with a sync; the server's crash
    /// loses any part of it. A host that is alive then has it still, and sends it again.
    pub unstable_writes: bool,
    /// A dirty part of a page may be sent with the rest of the page, as the host's cache has it.
    pub whole_page_writes: bool,
    /// An uncached read drops the host's clean pages and reads through its cache (the page cache of one kernel); otherwise
    /// it sends the host's dirty pages of the file and reads from the server (O_DIRECT of NFS and CephFS).
    pub uncached_through_cache: bool,
    /// Names, and lengths set by `set_length`, are durable when the call returns; otherwise only after a sync (of the
    /// directory, of the file), and a crash undoes any number of a directory's last changes.
    pub metadata_durable_at_once: bool,
    /// A file that is removed or replaced while its host has it open stays in the directory under a name of the client
    /// (`.nfsXXXX`) until its last handle goes.
    pub silly_rename: bool,
    /// A file that has lost its name and is open on a host that runs survives the server's restart (CephFS); otherwise its
    /// handles are stale then.
    pub restart_keeps_open_files: bool,
    /// Before a host opens, reads or changes a file, the dirty pages of other hosts are sent, and reads see the newest
    /// bytes (capabilities of CephFS). The call does not return while one of those hosts is cut off.
    pub coherent: bool,
    /// A host that is cut off for longer is refused from then on (`Fenced`), and what it had not sent is dropped.
    pub blocklist_after_ms: Option<u64>,
    /// The lock of a host that is cut off for longer is given to another that asks for it.
    pub lock_lease_ms: u64,
    pub broken: Broken,
}

/// Properties that the volume does not keep; what kaas does not work on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Broken {
    /// P1: other hosts may see both names of a rename, or neither, until the renamer's next call; a crash may leave either.
    pub rename: bool,
    /// P2: an exclusive create of a name that another host has created may succeed, on the same file.
    pub exclusive_create: bool,
    /// P3: uncached reads and opens, and reads of records, are answered from the page and attribute caches.
    pub uncached_read: bool,
    /// P4: a sync returns without having made anything durable (a server with an `async` export, a disk that ignores
    /// flushes).
    pub sync: bool,
}

impl Broken {
    pub const NOTHING: Self =
        Self { rename: false, exclusive_create: false, uncached_read: false, sync: false };
}

impl Profile {
    /// A file system of one host, as ext4 and XFS are: coherent, nothing durable before its sync.
    pub fn local() -> Self {
        Self {
            sharing: Sharing::OneHost { reason: "the volume is a disk of one host" },
            absent_name_ms: 0,
            known_name_ms: 0,
            attributes_ms: 0,
            write_back_ms: 30_000,
            opens_revalidate: true,
            closes_flush: false,
            unstable_writes: false,
            whole_page_writes: false,
            uncached_through_cache: true,
            metadata_durable_at_once: false,
            silly_rename: false,
            restart_keeps_open_files: false,
            coherent: false,
            blocklist_after_ms: None,
            lock_lease_ms: 0,
            broken: Broken::NOTHING,
        }
    }

    /// NFSv4.2 with default mount options and an honest (`sync`) export.
    pub fn nfs() -> Self {
        Self {
            sharing: Sharing::ManyHosts,
            absent_name_ms: 30_000,
            known_name_ms: 30_000,
            attributes_ms: 3_000,
            write_back_ms: 13_000,
            opens_revalidate: true,
            closes_flush: true,
            unstable_writes: true,
            whole_page_writes: true,
            uncached_through_cache: false,
            metadata_durable_at_once: true,
            silly_rename: true,
            restart_keeps_open_files: false,
            coherent: false,
            blocklist_after_ms: None,
            lock_lease_ms: 10_000,
            broken: Broken::NOTHING,
        }
    }

    /// CephFS with its kernel client, and `session_autoclose` at 30 s.
    pub fn cephfs() -> Self {
        Self {
            sharing: Sharing::ManyHosts,
            absent_name_ms: 0,
            known_name_ms: 0,
            attributes_ms: 0,
            write_back_ms: 5_000,
            opens_revalidate: true,
            closes_flush: false,
            unstable_writes: false,
            whole_page_writes: false,
            uncached_through_cache: false,
            metadata_durable_at_once: false,
            silly_rename: false,
            restart_keeps_open_files: true,
            coherent: true,
            blocklist_after_ms: Some(60_000),
            lock_lease_ms: 60_000,
            broken: Broken::NOTHING,
        }
    }

    /// The same with broken properties.
    pub fn breaking(mut self, broken: Broken) -> Self {
        self.broken = broken;
        self
    }
}
