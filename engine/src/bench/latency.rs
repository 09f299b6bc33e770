//! Latencies of one kind of operation.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// The longest latency that is told apart: ten minutes.
const LONGEST_NANOS: u64 = 600_000_000_000;

/// What was measured, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Latency {
    pub count: u64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
}

/// Collects latencies in fixed memory.
#[derive(Debug, Default)]
pub struct Latencies {
    histogram: Option<Histogram<u64>>,
}

impl Latencies {
    pub fn note(&mut self, duration: Duration) {
        if self.histogram.is_none() {
            // Three significant digits: of these bounds it cannot fail.
            self.histogram = Histogram::new_with_max(LONGEST_NANOS, 3).ok();
        }
        if let Some(histogram) = &mut self.histogram {
            histogram.saturating_record(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
        }
    }

    pub fn add(&mut self, other: Self) {
        match (&mut self.histogram, other.histogram) {
            (Some(all), Some(more)) => {
                // Of the same bounds, so that it cannot fail.
                let _ = all.add(&more);
            }
            (all @ None, more) => *all = more,
            (Some(_), None) => {}
        }
    }

    pub fn summary(&self) -> Latency {
        let at = |quantile| {
            self.histogram
                .as_ref()
                .map_or(0.0, |histogram| histogram.value_at_quantile(quantile) as f64 / 1e3)
        };
        let count = self.histogram.as_ref().map_or(0, Histogram::len);
        Latency { count, p50_us: at(0.5), p99_us: at(0.99), max_us: at(1.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_of_everything_that_was_noted() {
        let (mut one, mut two) = (Latencies::default(), Latencies::default());
        assert_eq!(one.summary().count, 0);
        (1..=99).for_each(|micros| two.note(Duration::from_micros(micros)));
        one.add(two);
        let mut three = Latencies::default();
        three.note(Duration::from_millis(5));
        one.add(three);
        let summary = one.summary();
        let near = |value: f64, expected: f64| (value - expected).abs() <= expected / 500.0;
        assert_eq!(summary.count, 100);
        assert!(near(summary.p50_us, 50.0) && near(summary.p99_us, 99.0) && near(summary.max_us, 5000.0));
    }
}
