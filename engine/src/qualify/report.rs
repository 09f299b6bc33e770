//! What a qualification found, as a whole; the JSON that `--json` prints. The schema is documented in
//! `docs/operating/qualify.md`; names and meanings stay, new fields may come.

use serde::Serialize;

use super::check::{Basis, Check, Outcome};
use super::latency::{LatencyRow, Throughput};
use super::pair::{Clients, PairFacts};
use super::protocol::{Family, Host, Volume};

/// Version of the JSON.
pub const FORMAT: u32 = 1;

/// May kaas run on it?
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// For several brokers.
    Fit,
    /// For one broker on one host.
    FitForOneBroker,
    Unfit,
}

/// Everything that was found.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub format: u32,
    pub version: &'static str,
    pub verdict: Verdict,
    /// Why not better, or what was left open; the weightiest first.
    pub reasons: Vec<String>,
    pub dir: String,
    /// Milliseconds since 1970.
    pub began_ms: u64,
    pub elapsed_ms: u64,
    /// Times that everything required was tried.
    pub passes: u32,
    pub clients: Clients,
    pub host: Host,
    pub volume: Volume,
    pub second_host: Host,
    pub second_volume: Volume,
    pub checks: Vec<Check>,
    pub latencies: Vec<LatencyRow>,
    pub throughput: Vec<Throughput>,
    /// Directories of crashed runs that were removed, and such that were left alone.
    pub leftovers_removed: Vec<String>,
    pub leftovers_left: Vec<String>,
}

/// The verdict and its reasons.
pub fn judge(facts: &PairFacts, checks: &[Check]) -> (Verdict, Vec<String>) {
    let failed: Vec<_> = checks
        .iter()
        .filter(|check| check.outcome == Outcome::Failed)
        .map(|check| match check.basis {
            Basis::Mount => check.detail.clone(),
            basis => format!("{basis}: {}", check.detail),
        })
        .collect();
    if !failed.is_empty() {
        let mut failed = failed;
        failed.extend(advice(facts, checks));
        return (Verdict::Unfit, failed);
    }
    let mut reasons = Vec::new();
    match (facts.volume_a.family, facts.clients) {
        (Family::Local, _) => {
            reasons.push("a file system of one host: other hosts cannot take over from it".to_owned());
        }
        (Family::Unknown, _) => reasons.push(format!(
            "kaas knows nothing about {}: it takes it for a file system of one host, and only if told to",
            facts.volume_a.file_system
        )),
        (_, Clients::One) => reasons.push(
            "tried through one mount only: try it from two hosts (--peer) or two mounts (--second-mount)"
                .to_owned(),
        ),
        (_, Clients::TwoMounts | Clients::TwoHosts) => {}
    }
    let verdict = if reasons.is_empty() { Verdict::Fit } else { Verdict::FitForOneBroker };
    let untested =
        checks.iter().find(|check| check.name == "fsync_durable" && check.outcome == Outcome::NotTested);
    if let Some(check) = untested {
        const WHAT: &str = "whether what was fsynced survives a loss of power";
        reasons.push(if check.rounds == 0 {
            format!("not tried: {WHAT} (--restart-command)")
        } else {
            format!("not shown: {WHAT}: --restart-command has restarted nothing")
        });
    }
    (verdict, reasons)
}

/// What is known to help.
fn advice(facts: &PairFacts, checks: &[Check]) -> Option<String> {
    let failed = |name| checks.iter().any(|check| check.name == name && check.outcome == Outcome::Failed);
    let fuse =
        [&facts.volume_a, &facts.volume_b].iter().any(|volume| volume.file_system.starts_with("fuse.ceph"));
    (fuse && failed("fsync_visible")).then(|| {
        "ceph-fuse keeps old pages with its default page cache: mount with --fuse_disable_pagecache=true, or with the \
         kernel's client"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qualify::check::Probe;
    use crate::qualify::protocol::Begun;

    fn facts(family: Family, clients: Clients) -> PairFacts {
        let host = Host {
            protocol: 1,
            version: String::new(),
            name: String::new(),
            boot_id: String::new(),
            kernel: String::new(),
        };
        let volume = Volume {
            family,
            file_system: "ninefs".into(),
            source: String::new(),
            mounted_on: String::new(),
            options: Vec::new(),
            refused: None,
            device: 1,
            total_bytes: None,
            available_bytes: None,
        };
        PairFacts {
            host_a: host.clone(),
            host_b: host,
            volume_a: volume.clone(),
            volume_b: volume,
            begun: Begun { removed: Vec::new(), left: Vec::new() },
            clients,
        }
    }

    fn passed() -> Check {
        Probe::new("x", "x", Basis::P1).end("")
    }

    #[test]
    fn shared_volumes_are_fit_if_two_clients_tried_them() {
        for family in [Family::Nfs, Family::CephFs] {
            for (clients, expected) in [
                (Clients::One, Verdict::FitForOneBroker),
                (Clients::TwoMounts, Verdict::Fit),
                (Clients::TwoHosts, Verdict::Fit),
            ] {
                assert_eq!(judge(&facts(family, clients), &[passed()]).0, expected);
            }
        }
        for family in [Family::Local, Family::Unknown] {
            let (verdict, reasons) = judge(&facts(family, Clients::TwoMounts), &[passed()]);
            assert_eq!((verdict, reasons.len()), (Verdict::FitForOneBroker, 1));
        }
    }

    #[test]
    fn whatever_failed_is_a_reason() {
        let mut bad = Probe::new("y", "y", Basis::P3);
        bad.violation("late");
        let mut mount = Probe::new("z", "z", Basis::Mount);
        mount.violation("soft: no");
        let checks = [passed(), bad.end(""), mount.end("")];
        let (verdict, reasons) = judge(&facts(Family::Nfs, Clients::TwoHosts), &checks);
        assert_eq!((verdict, reasons), (Verdict::Unfit, vec!["P3: late".to_owned(), "soft: no".to_owned()]));
    }

    #[test]
    fn what_helps_is_said_where_it_is_known() {
        let mut stale = Probe::new("fsync_visible", "y", Basis::P4);
        stale.violation("stale");
        let checks = [stale.end("")];
        let mut on_fuse = facts(Family::CephFs, Clients::TwoMounts);
        assert_eq!(judge(&on_fuse, &checks).1.len(), 1);
        on_fuse.volume_b.file_system = "fuse.ceph-fuse".into();
        let (_, reasons) = judge(&on_fuse, &checks);
        assert!(reasons[1].contains("fuse_disable_pagecache"), "{reasons:?}");
    }

    #[test]
    fn what_was_not_tried_is_said() {
        let untested = crate::qualify::probes::not_asked_for();
        let (verdict, reasons) = judge(&facts(Family::Nfs, Clients::TwoHosts), &[untested]);
        assert_eq!(verdict, Verdict::Fit);
        assert!(
            reasons[0].starts_with("not tried") && reasons[0].contains("--restart-command"),
            "{reasons:?}"
        );
        let mut in_vain = Probe::new("fsync_durable", "x", Basis::P4);
        in_vain.round();
        let (_, reasons) = judge(&facts(Family::Nfs, Clients::TwoHosts), &[in_vain.not_tested("nothing")]);
        assert!(reasons[0].contains("has restarted nothing"), "{reasons:?}");
    }
}
