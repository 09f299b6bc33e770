//! The command `kaas-engine` as a process: what it prints and how it exits.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::path::Path;
use std::process::{Command, Output};

use kaas_engine::batch::{BatchOptions, SimpleRecord, StampedHeader, data_batch};
use kaas_engine::types::{Epoch, Offset};

fn kaas_engine(args: &[&str], path: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kaas-engine")).args(args).arg(path).output().unwrap()
}

fn log() -> Vec<u8> {
    let batch = data_batch(&[SimpleRecord::of("key", "value")], &BatchOptions::default()).unwrap();
    let stamped = StampedHeader::new(&batch, Offset(0), Epoch::new(1).unwrap()).unwrap();
    [&stamped.bytes()[..], &batch[61..]].concat()
}

#[test]
fn exit_codes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("00000001-00000000000000000000.log");
    std::fs::write(&path, log()).unwrap();

    for target in [path.as_path(), dir.path()] {
        let output = kaas_engine(&["dump", "--records"], target);
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(0), "{text}");
        assert!(text.contains("key \"key\"  value \"value\""), "{text}");
        assert!(output.stderr.is_empty());
    }
    let output = kaas_engine(&["dump", "--json"], &path);
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap();
    }

    let mut damaged = log();
    *damaged.last_mut().unwrap() ^= 1;
    std::fs::write(&path, damaged).unwrap();
    let output = kaas_engine(&["dump"], dir.path());
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("findings: 1, in files shown: 1"));

    let output = kaas_engine(&["dump"], &dir.path().join("missing"));
    assert_eq!(output.status.code(), Some(2));
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(complaint.contains("not found") && complaint.contains("hint:"), "{complaint}");

    let empty = tempfile::tempdir().unwrap();
    std::fs::write(empty.path().join("notes.txt"), "x").unwrap();
    let output = kaas_engine(&["dump"], empty.path());
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());

    let output = kaas_engine(&["dump", "--nonsense"], dir.path());
    assert_eq!(output.status.code(), Some(2));
}

/// Whether a paragraph's lines end where the next word would not fit any more.
fn is_wrapped_well(lines: &[&str], width: usize) -> bool {
    lines.windows(2).all(|pair| {
        let next = pair[1].split(' ').next().unwrap_or_default();
        pair[0].chars().count() + 1 + next.chars().count() > width
    })
}

#[test]
fn help_is_wrapped_at_the_width_of_the_terminal() {
    for command in ["", "verify", "dump", "qualify", "import", "bench"] {
        for width in [80, 100] {
            let args = command.split(' ').filter(|part| !part.is_empty());
            let output = Command::new(env!("CARGO_BIN_EXE_kaas-engine"))
                .args(args)
                .arg("--help")
                .env("COLUMNS", width.to_string())
                .output()
                .unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let lines: Vec<_> = text.lines().collect();
            let wide: Vec<_> = lines.iter().filter(|line| line.chars().count() > width).collect();
            assert!(wide.is_empty(), "{command} at {width}: {wide:?}");
            // What is not indented, but for titles, is prose.
            let prose = |line: &&str| !line.is_empty() && !line.starts_with(' ') && !line.ends_with(':');
            for paragraph in lines.split(|line| !prose(line)) {
                assert!(is_wrapped_well(paragraph, width), "{command} at {width}: {paragraph:#?}");
            }
        }
    }
}
