//! `kaas-engine bench` as a process: what it reports, and that it leaves nothing behind. No figure is asserted but that
//! there is one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn bench(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kaas-engine")).arg("bench").arg(dir).args(args).output().unwrap()
}

/// The shortest run that measures everything.
const SHORT: &[&str] = &[
    "--rounds",
    "3",
    "--round-ms",
    "20",
    "--batch-bytes",
    "1KiB,64KiB",
    "--partitions",
    "1,3",
    "--in-flight",
    "1,4",
];

#[test]
fn everything_is_measured_and_the_directory_left_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let left = dir.path().join("~bench-00000000000000aa");
    fs::create_dir(&left).unwrap();
    fs::write(left.join("raw-0"), "left by a crash").unwrap();
    fs::write(dir.path().join("neighbour"), "kept").unwrap();
    let output = bench(
        dir.path(),
        &[SHORT, &["--takeover", "60MiB,10MiB", "--compaction", "8MiB", "--json"]].concat(),
    );
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["format"], &report["substrate"]), (&1.into(), &"local".into()));
    let commits = report["commits"].as_array().unwrap();
    assert_eq!(commits.len(), 8);
    for row in commits {
        for ratio in ["ratio", "fenced_ratio"] {
            let at = |name: &str| row[ratio][name].as_f64().unwrap();
            assert!(0.0 < at("min") && at("min") <= at("median") && at("median") <= at("max"), "{row}");
        }
        for side in ["raw", "fenced", "engine", "fence"] {
            let at = |name: &str| row[side][name].as_f64().unwrap();
            assert!(at("count") > 0.0 && 0.0 < at("p50_us") && at("p50_us") <= at("p99_us"), "{row}");
        }
        assert!(row["fence_share"].as_f64().unwrap() > 0.0);
        // Bytes a second are batches of about the size that was asked for.
        let bytes = row["engine_bytes_per_second"].as_f64().unwrap()
            / row["engine_batches_per_second"].as_f64().unwrap();
        let asked = row["batch_bytes"].as_f64().unwrap();
        assert!((bytes - asked).abs() < 100.0, "{row}");
    }
    assert!(report["reads"]["log_bytes"].as_u64().unwrap() >= 60 << 20, "{report}");
    assert!(report["reads"]["ratio"]["median"].as_f64().unwrap() > 0.0);
    let takeovers = report["takeovers"].as_array().unwrap();
    assert_eq!(takeovers.len(), 2);
    for (takeover, asked) in takeovers.iter().zip([10_u64 << 20, 60 << 20]) {
        // To a batch of 1 MiB.
        assert!(takeover["log_bytes"].as_u64().unwrap().abs_diff(asked) < 1 << 20, "{takeover}");
        let at = |what: &str| takeover[what]["median"].as_f64().unwrap();
        assert!(0.0 < at("open_ms") && at("open_ms") <= at("first_acknowledged_ms"), "{takeover}");
    }
    let compactions = report["compactions"].as_array().unwrap();
    assert_eq!(compactions.len(), 1);
    let at = |what: &str| compactions[0][what].as_u64().unwrap();
    // All but the last segment are compacted; a quarter of the records stay, and some more.
    assert!((6 << 20..9 << 20).contains(&at("log_bytes")), "{report}");
    assert!(at("left_bytes") * 2 < at("log_bytes") && at("left_bytes") > 1 << 20, "{report}");
    assert!(at("keys") > 1000 && at("map_bytes") >= at("keys") * 24, "{report}");
    assert!(at("map_bytes") < at("memory_bound_bytes"), "{report}");
    for rate in ["round_ms", "read_bytes_per_second", "written_bytes_per_second", "ratio"] {
        assert!(compactions[0][rate]["median"].as_f64().unwrap() > 0.0, "{report}");
    }
    let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["neighbour"]);
}

#[test]
fn the_text_fits_a_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let output = bench(
        dir.path(),
        &[SHORT, &["--no-reads", "--takeover", "9MiB", "--compaction", "1536KiB"]].concat(),
    );
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("by fenced")
            && text.contains("fence p50")
            && text.contains("until it acknowledges")
            && text.contains("map of keys"),
        "{text}"
    );
    assert!(!text.contains("MB/s, engine"), "reads were left out: {text}");
    let long: Vec<_> = text.lines().skip(1).filter(|line| line.chars().count() > 80).collect();
    assert_eq!(long, Vec::<&str>::new());
}

#[test]
fn a_directory_that_cannot_be_measured_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    for (path, args, said) in [
        (file.as_path(), &[][..], "Not a directory"),
        (Path::new("/proc"), &[], "not known"),
        (&dir.path().join("missing"), &[], "not found"),
        (dir.path(), &["--substrate", "nfs"], "not on NFS"),
        (dir.path(), &["--batch-bytes", "1"], "100 bytes to 64 MiB"),
        (dir.path(), &["--partitions", "0"], "1 to 1024"),
        (dir.path(), &["--rounds", "2"], "3 to 1000"),
        (dir.path(), &["--takeover", "10MiB,0"], "8 MiB at least"),
        (dir.path(), &["--compaction", "0"], "1 MiB at least"),
        (
            dir.path(),
            &["--takeover", "10MiB,1048576GiB"],
            "a takeover of 1048576 GiB needs 1048576 GiB of space",
        ),
        (dir.path(), &["--compaction", "1048576GiB"], "compaction of 1048576 GiB needs 3145728 GiB of space"),
    ] {
        let output = bench(path, args);
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{complaint}");
        assert!(output.stdout.is_empty() && complaint.contains(said), "{complaint}");
    }
    assert!(!dir.path().join("missing").exists(), "it was made");
}
