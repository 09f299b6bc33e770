//! Limits of the process: file descriptors and threads.

use std::num::NonZero;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the number of file descriptors this process may open to what the system allows it; the number now.
/// `None` means no limit.
pub fn raise_descriptors() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let wanted = Rlimit { current: limit.maximum, maximum: limit.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, wanted) {
            tracing::warn!(%error, "cannot raise the limit of open files");
        }
    }
    getrlimit(Resource::Nofile).current
}

/// Threads for the network where none are asked for: one a processor, at most 4.
pub fn default_worker_threads() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get).min(4)
}
