//! Limits of the process: file descriptors and threads.

use std::num::NonZero;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// With fewer file descriptors than this a broker with some topics comes to the end of them.
const FEW_DESCRIPTORS: u64 = 4096;

/// Raises the number of file descriptors this process may open to what the system allows it, and tells the log how many those
/// are.
pub fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let wanted = Rlimit { current: limit.maximum, maximum: limit.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, wanted) {
            tracing::warn!(%error, "cannot raise the limit of open files");
        }
    }
    match getrlimit(Resource::Nofile).current {
        Some(few) if few < FEW_DESCRIPTORS => tracing::warn!(
            limit = few,
            hint = "raise the hard limit (ulimit -Hn, LimitNOFILE= of systemd)",
            "few files may be open: a partition in use takes two"
        ),
        limit => tracing::info!(limit, "files that may be open"),
    }
}

/// Threads for the network where none are asked for: one a processor, at most 4.
pub fn default_worker_threads() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get).min(4)
}
