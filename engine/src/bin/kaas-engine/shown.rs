//! A progress bar on a thread of its own; nothing without a terminal.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How often it is drawn anew.
const TICK: Duration = Duration::from_millis(100);

/// A bar that is being shown on standard error.
pub struct Shown {
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Shown {
    /// Shows a bar of `template` (indicatif's); `update` is called before each time that it is drawn.
    pub fn begin(template: impl Into<String>, update: impl Fn(&ProgressBar) + Send + 'static) -> Self {
        let (template, stop) = (template.into(), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let thread = io::stderr().is_terminal().then(|| {
            thread::spawn(move || {
                let style =
                    ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar());
                let target = ProgressDrawTarget::stderr();
                let bar = ProgressBar::with_draw_target(Some(0), target).with_style(style);
                while !stopped.load(Ordering::Relaxed) {
                    update(&bar);
                    bar.tick();
                    thread::sleep(TICK);
                }
                bar.finish_and_clear();
            })
        });
        Self { stop, thread }
    }

    /// Whether anybody sees it.
    pub fn is_visible(&self) -> bool {
        self.thread.is_some()
    }

    /// Takes it away.
    pub fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread {
            // It only draws; what went wrong there is of no concern.
            let _ = thread.join();
        }
    }
}
