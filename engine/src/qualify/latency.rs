//! What single calls cost on the mount: plans, histograms, and what is reported of them.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::pair::Pair;
use super::peer::Trouble;
use super::protocol::{Measure, Measured};

/// Longest time that one measurement of one pass takes, in milliseconds.
const AT_MOST_MS: u64 = 1500;

/// Bytes of the file that is written and read in sequence, at most.
const SEQUENTIAL_BLOCKS: u32 = 64;

/// Bytes of a block of it.
const BLOCK: u64 = 1 << 20;

/// The longest latency that is told apart: ten minutes.
const LONGEST_NANOS: u64 = 600_000_000_000;

/// How the read of a record is called before it is known how kaas reads its fence on the volume.
const RECORD_READ: &str = "read of a record (fence)";

/// One operation, for people and programs.
struct Plan {
    what: Measured,
    name: &'static str,
    title: &'static str,
    /// Most of them in one pass.
    most: u32,
}

const PLANS: &[Plan] = &[
    Plan { what: Measured::Create, name: "create", title: "exclusive create", most: 1000 },
    Plan { what: Measured::Open, name: "open", title: "open and close", most: 1000 },
    Plan { what: Measured::Rename, name: "rename", title: "rename", most: 1000 },
    Plan { what: Measured::RecordRead, name: "record_read", title: RECORD_READ, most: 2000 },
    Plan { what: Measured::RecordWrite, name: "record_write", title: "record write + fdatasync", most: 1000 },
    Plan {
        what: Measured::WriteSync { bytes: 4096 },
        name: "write_sync_4k",
        title: "write + fdatasync, 4 KiB",
        most: 1000,
    },
    Plan {
        what: Measured::WriteSync { bytes: 65_536 },
        name: "write_sync_64k",
        title: "write + fdatasync, 64 KiB",
        most: 500,
    },
    Plan {
        what: Measured::WriteSync { bytes: 1 << 20 },
        name: "write_sync_1m",
        title: "write + fdatasync, 1 MiB",
        most: 60,
    },
];

/// What was measured of one operation.
#[derive(Debug, Clone, Serialize)]
pub struct LatencyRow {
    pub name: &'static str,
    pub title: &'static str,
    pub count: u64,
    /// Microseconds.
    pub min_us: f64,
    pub mean_us: f64,
    pub p50_us: f64,
    pub p90_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub max_us: f64,
    /// Pairs of a share of the operations, 0 to 1, and the microseconds within which it was done.
    pub percentiles: Vec<(f64, f64)>,
    /// p50 and p99 of each pass, in microseconds.
    pub passes: Vec<(f64, f64)>,
}

/// Bytes a second, of all passes.
#[derive(Debug, Clone, Serialize)]
pub struct Throughput {
    pub name: &'static str,
    pub title: &'static str,
    /// Bytes in all passes.
    pub bytes: u64,
    pub bytes_per_second: f64,
}

#[derive(Debug, Default)]
struct Flow {
    bytes: u64,
    nanos: u64,
}

/// Collects over passes.
#[derive(Debug, Default)]
pub struct Latencies {
    all: BTreeMap<&'static str, Histogram<u64>>,
    passes: BTreeMap<&'static str, Vec<(f64, f64)>>,
    written: Flow,
    read: Flow,
}

/// An empty histogram with three significant digits.
fn histogram() -> Option<Histogram<u64>> {
    Histogram::new_with_max(LONGEST_NANOS, 3).ok()
}

fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}

impl Latencies {
    /// The names of what a pass measures, for a progress bar.
    pub fn steps() -> impl Iterator<Item = &'static str> {
        PLANS.iter().map(|plan| plan.title).chain(["sequential write and read"])
    }

    /// Measures everything once; `at` is told what comes next.
    pub fn pass(&mut self, pair: &Pair, mut at: impl FnMut(&'static str)) -> Result<(), Trouble> {
        let dir = pair.dir("latency")?;
        for plan in PLANS {
            at(plan.title);
            let measure = Measure {
                what: plan.what,
                dir: dir.clone(),
                most: plan.most,
                at_most_ms: AT_MOST_MS,
                direct: pair.direct(),
            };
            self.record(plan.name, &pair.a.measure(measure)?);
        }
        at("sequential write and read");
        self.sequential(pair)
    }

    fn record(&mut self, name: &'static str, nanos: &[u64]) {
        let Some(mut pass) = histogram() else { return };
        for sample in nanos {
            pass.saturating_record(*sample);
        }
        let of_pass = (micros(pass.value_at_quantile(0.5)), micros(pass.value_at_quantile(0.99)));
        self.passes.entry(name).or_default().push(of_pass);
        match self.all.get_mut(name) {
            Some(all) => {
                // Of the same range, so that it cannot fail.
                let _ = all.add(&pass);
            }
            None => {
                self.all.insert(name, pass);
            }
        }
    }

    /// Written here, read by the other process, which has none of it in its caches (but on one mount: dropped first).
    fn sequential(&mut self, pair: &Pair) -> Result<(), Trouble> {
        // No more than a fraction of what is there; unknown is not full.
        let room = pair.facts.volume_a.available_bytes.map_or(u64::MAX, |bytes| bytes / 8) / BLOCK;
        let most = SEQUENTIAL_BLOCKS.min(u32::try_from(room).unwrap_or(u32::MAX));
        if most == 0 {
            return Ok(());
        }
        let dir = pair.dir("sequential")?;
        let measure =
            |what| Measure { what, dir: dir.clone(), most, at_most_ms: 2 * AT_MOST_MS, direct: false };
        let written = pair.a.measure(measure(Measured::SequentialWrite))?;
        // The last sample is the sync.
        self.written.add(written.len().saturating_sub(1), &written);
        pair.b.names(super::protocol::Ask::List { path: dir.clone() })?;
        let read = pair.b.measure(measure(Measured::SequentialRead))?;
        self.read.add(read.len(), &read);
        Ok(())
    }

    /// What is reported. Whether records were read and written with `O_DIRECT`, as fences are on shared volumes, is said: a read that
    /// does not is one of this host's memory.
    pub fn rows(&self, direct: bool) -> Vec<LatencyRow> {
        let rows = PLANS.iter().filter_map(|plan| {
            let all = self.all.get(plan.name)?;
            let at = |quantile| micros(all.value_at_quantile(quantile));
            Some(LatencyRow {
                name: plan.name,
                title: match (plan.what, direct) {
                    (Measured::RecordRead, true) => "fence read, past the cache",
                    (Measured::RecordRead, false) => "fence read, from the cache",
                    _ => plan.title,
                },
                count: all.len(),
                min_us: micros(all.min()),
                mean_us: all.mean() / 1e3,
                p50_us: at(0.5),
                p90_us: at(0.9),
                p99_us: at(0.99),
                p999_us: at(0.999),
                max_us: micros(all.max()),
                percentiles: percentiles(all),
                passes: self.passes.get(plan.name).cloned().unwrap_or_default(),
            })
        });
        rows.collect()
    }

    /// What is reported.
    pub fn throughput(&self) -> Vec<Throughput> {
        let flows = [
            ("sequential_write", "sequential write, fdatasync at the end", &self.written),
            ("sequential_read", "sequential read, not cached", &self.read),
        ];
        let rows =
            flows.into_iter().filter(|(_, _, flow)| flow.nanos > 0).map(|(name, title, flow)| Throughput {
                name,
                title,
                bytes: flow.bytes,
                bytes_per_second: flow.bytes as f64 * 1e9 / flow.nanos as f64,
            });
        rows.collect()
    }
}

impl Flow {
    fn add(&mut self, blocks: usize, nanos: &[u64]) {
        self.bytes += blocks as u64 * BLOCK;
        self.nanos += nanos.iter().sum::<u64>();
    }
}

/// A curve: 1 % to 90 % in steps, then each half of what is left, as far as there are samples.
fn percentiles(all: &Histogram<u64>) -> Vec<(f64, f64)> {
    let mut shares: Vec<f64> =
        [0.01, 0.05].into_iter().chain((1..=18).map(|n| f64::from(n) * 0.05)).collect();
    let mut left = 0.1;
    while left * all.len() as f64 >= 2.0 && left > 1e-6 {
        left /= 2.0;
        shares.push(1.0 - left);
    }
    shares.push(1.0);
    shares.sort_by(f64::total_cmp);
    shares.dedup();
    shares.into_iter().map(|share| (share, micros(all.value_at_quantile(share)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_tell_what_was_recorded() {
        let mut latencies = Latencies::default();
        latencies.record("create", &(1..=1000).map(|n| n * 1000).collect::<Vec<_>>());
        latencies.record("create", &[2_000_000]);
        let [row] = &latencies.rows(false)[..] else { panic!("one row") };
        assert_eq!((row.name, row.count, row.passes.len()), ("create", 1001, 2));
        let near = |value: f64, expected: f64| (value - expected).abs() <= expected / 500.0;
        assert!(near(row.min_us, 1.0) && near(row.p50_us, 501.0) && near(row.p99_us, 991.0), "{row:?}");
        assert!(near(row.max_us, 2000.0) && near(row.p999_us, 1000.0), "{row:?}");
        assert!(near(row.passes[0].0, 500.0) && near(row.passes[1].1, 2000.0), "{row:?}");
        assert!(row.percentiles.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1), "{row:?}");
        assert_eq!(row.percentiles.last().map(|last| last.0), Some(1.0));
    }

    #[test]
    fn a_read_of_the_fence_is_called_what_it_is() {
        let mut latencies = Latencies::default();
        latencies.record("record_read", &[1000]);
        latencies.record("open", &[1000]);
        let titles = |direct| latencies.rows(direct).iter().map(|row| row.title).collect::<Vec<_>>();
        assert_eq!(titles(true), ["open and close", "fence read, past the cache"]);
        assert_eq!(titles(false), ["open and close", "fence read, from the cache"]);
    }

    #[test]
    fn throughput_is_bytes_by_time() {
        let mut latencies = Latencies::default();
        assert!(latencies.throughput().is_empty());
        latencies.written.add(2, &[500_000_000, 250_000_000, 250_000_000]);
        let [row] = &latencies.throughput()[..] else { panic!("one row") };
        assert_eq!(row.bytes, 2 << 20);
        assert!((row.bytes_per_second - f64::from(2 << 20)).abs() < 1.0);
    }
}
