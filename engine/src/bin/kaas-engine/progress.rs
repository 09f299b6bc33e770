//! The progress of `verify`: directories, bytes, how fast, and how long still.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, HumanDuration, ProgressBar};
use kaas_engine::verify::Progress;

use crate::shown::Shown;

/// Shows the progress of `what` until it is told to end.
pub fn show(what: &'static str, progress: &Arc<Progress>) -> Shown {
    let (progress, began) = (Arc::clone(progress), Instant::now());
    Shown::begin("{spinner} {wide_bar} {msg}", move |bar| update(bar, what, began, &progress))
}

fn update(bar: &ProgressBar, what: &str, began: Instant, progress: &Progress) {
    let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (bytes, total) = (of(&progress.bytes), of(&progress.bytes_total));
    let (directories, all) = (of(&progress.directories), of(&progress.directories_total));
    // By bytes where they are known: directories differ too much in size.
    let (position, length) = if total > 0 { (bytes.min(total), total) } else { (directories, all) };
    bar.set_length(length);
    bar.set_position(position);
    bar.set_message(message(what, began.elapsed(), [bytes, total, directories, all]));
}

fn message(
    what: &str,
    elapsed: Duration,
    [bytes, total, directories, directories_total]: [u64; 4],
) -> String {
    let millis = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).max(1);
    let rate = bytes.saturating_mul(1000) / millis;
    let mut text = format!("{what}: {directories}/{directories_total} directories, {}", HumanBytes(bytes));
    if total > 0 {
        text.push_str(&format!(" of {}", HumanBytes(total)));
    }
    text.push_str(&format!(", {}/s", HumanBytes(rate)));
    if total > bytes && rate > 0 {
        let left = Duration::from_secs((total - bytes) / rate);
        text.push_str(&format!(", {} left", HumanDuration(left)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_rate_and_what_is_left() {
        let second = Duration::from_secs(1);
        assert_eq!(
            message("looking", second, [1 << 20, 61 << 20, 3, 7]),
            "looking: 3/7 directories, 1.00 MiB of 61.00 MiB, 1.00 MiB/s, 60 seconds left"
        );
        assert_eq!(
            message("looking", second, [1 << 20, 0, 3, 7]),
            "looking: 3/7 directories, 1.00 MiB, 1.00 MiB/s"
        );
    }
}
