//! Why a broker does not start: in words, as an exit code, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};

use kaas_control::ControlError;
use kaas_engine::layout::CLUSTER_DIR;
use kaas_engine::leadership::ClaimError;
use kaas_substrate::{ErrorClass, recognise};

use super::HostPort;
use crate::config::ConfigError;
use crate::group::state::GroupConfigError;
use crate::net::ListenerError;

/// Why a broker does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A `--set` that is not valid.
    #[error("--set: {0}")]
    Config(#[from] ConfigError),
    /// A `--set` of group coordination that is out of range.
    #[error("--set: {0}")]
    Group(#[from] GroupConfigError),
    /// A `--set` of something that has a flag.
    #[error("--set {name}=...: use {flag} instead")]
    DecidedByFlag {
        /// The config.
        name: &'static str,
        /// The flag.
        flag: &'static str,
    },
    /// The host of `--listen` does not resolve.
    #[error("cannot resolve the host of --listen {listen}: {source}")]
    Resolve {
        /// What was given.
        listen: HostPort,
        /// The system's words.
        source: io::Error,
    },
    /// The address cannot be bound.
    #[error(transparent)]
    Listener(#[from] ListenerError),
    /// `--require-data`, and there is none.
    #[error(
        "data directory {} holds no data (no {CLUSTER_DIR}/), and --require-data is given; it is on {}, mounted on {}",
        dir.display(), file_system, mounted_on.display()
    )]
    NoData {
        /// The directory.
        dir: PathBuf,
        /// The kind of file system that it is on.
        file_system: String,
        /// Where that is mounted.
        mounted_on: PathBuf,
    },
    /// The data directory cannot be created or opened.
    #[error("cannot use data directory {}: {source}", dir.display())]
    Directory {
        /// The directory.
        dir: PathBuf,
        /// What is wrong.
        source: kaas_substrate::Error,
    },
    /// The data directory is on a kind of volume that kaas cannot keep its guarantees on.
    #[error("cannot use data directory: {0}")]
    Volume(recognise::OpenError),
    /// What the data directory holds cannot be used.
    #[error("cannot use data directory {}: {source}", dir.display())]
    Data {
        /// The directory.
        dir: PathBuf,
        /// What is wrong.
        source: ControlError,
    },
    /// The system gives no threads.
    #[error("cannot start threads: {0}")]
    Threads(io::Error),
}

impl StartError {
    /// The exit code of `kaas`: 2 usage, 3 data directory, 4 address in use, 1 anything else.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Group(_) | Self::DecidedByFlag { .. } | Self::Resolve { .. } => 2,
            Self::NoData { .. } | Self::Directory { .. } | Self::Volume(_) | Self::Data { .. } => 3,
            Self::Listener(ListenerError::InUse { .. }) => 4,
            Self::Listener(_) | Self::Threads(_) => 1,
        }
    }

    /// What to do about it, where the words do not say that already.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            // The words say what is allowed.
            Self::Config(_) | Self::Group(_) | Self::DecidedByFlag { .. } | Self::Volume(_) => return None,
            Self::Resolve { .. } => "check the name; 0.0.0.0 listens on all addresses of this host".to_owned(),
            Self::Listener(error) => return of_listener(error),
            Self::NoData { dir, .. } => format!(
                "mount the volume that holds it: either it is not mounted, or no broker was ever started on {}; for the first start, \
                 leave --require-data out",
                dir.display()
            ),
            Self::Directory { dir, source } => return of_storage(dir, source),
            Self::Data { dir, source } => return of_data(dir, source),
            Self::Threads(_) => "raise the number of threads that it may have (ulimit -u, TasksMax= of systemd, the pids limit \
                                 of the container)"
                .to_owned(),
        };
        Some(hint)
    }
}

fn of_listener(error: &ListenerError) -> Option<String> {
    let hint = match error {
        ListenerError::InUse { address } => format!(
            "`ss -ltnp 'sport = :{}'` shows which process has it; stop that one, or choose another port with --listen",
            address.port()
        ),
        ListenerError::Bind { source, .. } => match source.kind() {
            io::ErrorKind::PermissionDenied => {
                "choose a port from 1024 on with --listen, or give it the right to have a lower one (CAP_NET_BIND_SERVICE)"
                    .to_owned()
            }
            io::ErrorKind::AddrNotAvailable => {
                "listen on an address of this host (`ip address` shows them; 0.0.0.0 is all), and tell clients another one \
                 with --advertised"
                    .to_owned()
            }
            _ => return None,
        },
    };
    Some(hint)
}

fn of_data(dir: &Path, error: &ControlError) -> Option<String> {
    let hint = match error {
        ControlError::Storage(error) => return of_storage(dir, error),
        ControlError::Claim { source, .. } => match source.downcast_ref::<ClaimError>() {
            Some(ClaimError::Storage(error)) => return of_storage(dir, error),
            Some(ClaimError::OutOfRange { .. } | ClaimError::OutOfReach { .. }) => verify(dir),
            _ => return None,
        },
        ControlError::Locked { .. } => {
            "a data directory has one broker: stop that one, or start this one with another --data-dir"
                .to_owned()
        }
        ControlError::ForeignDirectory { what: "node", found, .. } => {
            format!("start it with --node-id {found}, or with another --data-dir")
        }
        ControlError::ForeignDirectory { what: "cluster", .. } => {
            "check which volume is mounted there; if it is the right one, correct --cluster-id".to_owned()
        }
        ControlError::NotEmpty { .. } => {
            "name a directory that is empty, or does not exist. The log directory of an Apache \
                                          Kafka becomes a data directory with `kaas-engine import`"
                .to_owned()
        }
        ControlError::MissingMeta { .. } => {
            "restore cluster/meta.json from a backup or a snapshot of the volume".to_owned()
        }
        ControlError::Damaged { .. } | ControlError::Vanishing { .. } | ControlError::FenceUnknown { .. } => {
            verify(dir)
        }
        // Their words say it, or a start does not meet them.
        _ => return None,
    };
    Some(hint)
}

fn of_storage(dir: &Path, error: &kaas_substrate::Error) -> Option<String> {
    let dir = dir.display();
    // Of a file below the directory; that itself has its whole path.
    let is_within = error.path.is_relative();
    let hint = match (error.class, error.source.kind()) {
        (_, io::ErrorKind::PermissionDenied) => {
            let user = rustix::process::geteuid();
            if user.is_root() {
                return Some(format!(
                    "root may do everything but what the volume forbids: an export of NFS with root_squash (run it as the owner of \
                     {dir}), an immutable directory (`lsattr`), a kernel file system, or a container without the rights"
                ));
            }
            let user = user.as_raw();
            format!(
                "it runs as user {user}, who must be able to write {dir} and all below it, and to reach it: `namei -l {dir}` \
                 shows the rights, `chown -R {user} {dir}` gives it to that user"
            )
        }
        (_, io::ErrorKind::ReadOnlyFilesystem) => {
            "mount the volume with rw; the kernel makes it read-only after an error (`dmesg` says so)".to_owned()
        }
        (_, io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory) if !is_within => {
            format!("{dir}, and what it lies in, must be directories: name another one with --data-dir")
        }
        (ErrorClass::NotFound, _) if !is_within => {
            format!("it cannot be made there: check the path, and links on it that lead nowhere (`namei -l {dir}`)")
        }
        (ErrorClass::NotFound | ErrorClass::Exists, _)
        | (_, io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory) => {
            format!("something has removed or replaced files below {dir}: restore them, or {}", verify_words(&dir))
        }
        (ErrorClass::NoSpace, _) => format!(
            "make room on the volume: `df -h {dir}` shows the space, `df -i {dir}` the number of files; a quota counts, too"
        ),
        (ErrorClass::NoDescriptors, _) => "raise the limit of open files (ulimit -n, LimitNOFILE= of systemd)".to_owned(),
        (ErrorClass::Fenced, _) => {
            "the volume has shut this host out: mount it anew, after a look why (CephFS: `ceph osd blocklist ls`)".to_owned()
        }
        (ErrorClass::Io | ErrorClass::Stale | ErrorClass::Retriable, _) => {
            "look at the volume, its server and the kernel's log (`dmesg`), and start again".to_owned()
        }
        _ => return None,
    };
    Some(hint)
}

fn verify(dir: &Path) -> String {
    verify_words(&dir.display())
}

fn verify_words(dir: &dyn std::fmt::Display) -> String {
    format!("`kaas-engine verify {dir}` says what is damaged and how it is repaired")
}
