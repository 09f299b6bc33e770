//! `kaas-engine dump` on what does not count: where `verify` finds nothing wrong, nor does it; and on files of nobody.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

#[path = "support/looking.rs"]
mod looking;
mod support;

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output};

use looking::{assert_clean, change, closed, counted, dir, files};
use serde_json::Value;

fn dump(args: &[&str], path: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kaas-engine")).arg("dump").args(args).arg(path).output().unwrap()
}

#[track_caller]
fn items(path: &Path, code: i32) -> Vec<Value> {
    let output = dump(&["--json"], path);
    assert_eq!(output.status.code(), Some(code), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn append(path: &Path, bytes: &[u8]) {
    std::fs::OpenOptions::new().append(true).open(path).unwrap().write_all(bytes).unwrap();
}

#[test]
fn what_is_dead_is_shown_as_dead_and_is_no_finding() {
    let volume = closed();
    assert!(items(&dir(&volume), 0).iter().all(|item| item["dead"].is_null()));
    // Of a deposed leader: a whole batch, a damaged one, half of one; and junk behind an index.
    let logs = counted(&volume);
    let (first, second) = (&logs[0], &logs[1]);
    let bytes = std::fs::read(&first.0).unwrap();
    let mut damaged = bytes.clone();
    damaged[70] ^= 1;
    append(&first.0, &bytes);
    append(&first.0, &damaged);
    append(&first.0, &bytes[..30]);
    append(&second.0, b"junk");
    append(&files(&volume, "", ".index")[0], b"junk!");
    // A segment that the manifest does not count, and files on their way.
    std::fs::write(dir(&volume).join("00000001-00000000000000000003-00000007.log"), "junk").unwrap();
    std::fs::write(dir(&volume).join("~tmp-manifest.00000001.9.json"), "{").unwrap();
    std::fs::create_dir(dir(&volume).join("quarantine")).unwrap();
    std::fs::write(dir(&volume).join("quarantine/manifest.00000001.1.json"), "{").unwrap();
    assert_clean(&volume, "what is dead");

    let items = items(&dir(&volume), 0);
    let of_kind = |kind: &str| items.iter().filter(|item| item["kind"] == kind).cloned().collect::<Vec<_>>();
    assert!(of_kind("finding").is_empty());
    let dead = of_kind("dead");
    let mut told: Vec<_> = dead
        .iter()
        .map(|item| (item["position"].as_u64().unwrap(), item["bytes"].as_u64().unwrap()))
        .collect();
    told.sort_unstable();
    let mut expected = vec![(3 * first.1, 30), (second.1, 4), (0, 4)];
    expected.sort_unstable();
    assert_eq!(told, expected, "{dead:#?}");
    let batches = of_kind("batch");
    let dead: Vec<_> = batches.iter().filter(|batch| batch["dead"] == true).collect();
    assert!(dead.iter().all(|batch| batch["position"].as_u64().unwrap() >= first.1));
    assert_eq!(dead.iter().filter(|batch| batch["crc_ok"] == false).count(), 1);
    let text = String::from_utf8(dump(&[], &first.0).stdout).unwrap();
    assert!(
        text.contains("DEAD: behind what counts, never served")
            && text.contains(": dead, 30 bytes to the end"),
        "{text}"
    );

    // What counts is as ever.
    change(&first.0, |bytes| bytes[70] ^= 1);
    assert_eq!(dump(&[], &first.0).status.code(), Some(1));
    // And what is put aside is shown to whoever asks for it.
    assert_eq!(dump(&[], &dir(&volume).join("quarantine")).status.code(), Some(1));
}

#[test]
fn a_file_of_nobody_is_refused() {
    let volume = closed();
    for name in ["notes.txt", "server.log", "lock", "x"] {
        let path = dir(&volume).join(name);
        std::fs::write(&path, "mine").unwrap();
        let output = dump(&[], &path);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{name}: {said}");
        assert!(
            said.contains("by its name it is no file of kaas") && said.contains("hint: name a segment"),
            "{said}"
        );
    }
    assert_eq!(dump(&[], &dir(&volume)).status.code(), Some(0), "beside others it is passed over");
}
