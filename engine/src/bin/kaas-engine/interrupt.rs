//! Ctrl-C, and a request to end: the command cleans up and says so; a second one ends it at once.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::complain;

/// The exit code of a process that a signal has ended, as shells have it, is its number and this.
const OF_SIGNALS: i32 = 128;

/// The signal that came first; 0: none.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

/// What follows the first signal.
pub enum Then {
    /// There is nothing to clean up: the process ends.
    Exit,
    /// Whoever sees that this is set cleans up.
    Stop(Arc<AtomicBool>),
}

/// From now on a signal does not end the process: `message` is told, and then what is to follow does. Without a thread to
/// wait for signals they end the process as ever.
pub fn watch(then: Then, message: impl Fn() -> String + Send + 'static) {
    let Ok(mut signals) = Signals::new([SIGINT, SIGTERM]) else { return };
    let handle = signals.handle();
    let spawned = thread::Builder::new().spawn(move || {
        let mut stop = None;
        for signal in &mut signals {
            if stop.is_some() {
                std::process::exit(OF_SIGNALS + signal);
            }
            SIGNAL.store(signal, Ordering::Relaxed);
            complain(&message(), None);
            match &then {
                Then::Exit => std::process::exit(OF_SIGNALS + signal),
                Then::Stop(flag) => stop.insert(flag).store(true, Ordering::Relaxed),
            }
        }
    });
    if spawned.is_err() {
        handle.close();
    }
}

/// The exit code, if a signal has come.
pub fn code() -> Option<ExitCode> {
    let signal = SIGNAL.load(Ordering::Relaxed);
    u8::try_from(OF_SIGNALS + signal).ok().filter(|_| signal != 0).map(ExitCode::from)
}
