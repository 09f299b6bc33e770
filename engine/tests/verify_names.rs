//! Names that somebody else has chosen: not UTF-8, or made to drive a terminal. The commands tell them, and put such files aside.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

#[path = "support/data.rs"]
mod data;
#[path = "support/looking.rs"]
mod looking;
mod support;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Output};

use data::Data;

/// Clears a screen, and is no UTF-8.
const NAME: &[u8] = b"a\x1b[2J\xff\n\xc2\x9b.log";

/// As it is shown.
const SHOWN: &str = r"a\x1b[2J\xff\x0a\xc2\x9b.log";

fn command(args: &[&OsStr]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kaas-engine")).args(args).output().unwrap()
}

#[track_caller]
fn said(output: &Output) -> String {
    let said = [&output.stdout[..], &output.stderr].concat();
    let said = String::from_utf8(said).expect("what is said is UTF-8");
    let drives = |character: char| character != '\n' && character.is_control();
    assert!(!said.contains(drives), "{said:?}");
    said
}

/// In every kind of directory.
fn put(data: &Data) -> Vec<&'static str> {
    let dirs = [
        "",
        "topics",
        "topics/orders",
        "topics/orders/0",
        "slots/groups/07",
        "cluster",
        "cluster/controller",
    ];
    for dir in dirs {
        std::fs::write(data.path(dir).join(OsStr::from_bytes(NAME)), "not kaas's").unwrap();
    }
    dirs.to_vec()
}

#[test]
fn every_command_tells_of_them_and_drives_no_terminal() {
    let data = Data::new();
    let dirs = put(&data);
    let root = data.root().as_os_str();
    let output = command(&["verify".as_ref(), root]);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert_eq!(text.matches(SHOWN).count(), dirs.len(), "{text}");

    for mode in [&[][..], &["--dry-run"], &["--repair", "--yes"]] {
        let mut args: Vec<&OsStr> = vec!["verify".as_ref(), "--json".as_ref()];
        args.extend(mode.iter().map(OsStr::new));
        args.push(root);
        let output = command(&args);
        let json: serde_json::Value = serde_json::from_str(&said(&output)).unwrap();
        let findings = json["findings"].as_array().unwrap();
        let found =
            findings.iter().filter(|finding| finding["file"].as_str().unwrap().ends_with(SHOWN)).count();
        if mode.contains(&"--repair") {
            assert_eq!((output.status.code(), found), (Some(1), 2), "those that no repair touches: {json:#}");
        } else {
            assert_eq!((output.status.code(), found), (Some(1), dirs.len()), "{mode:?}: {json:#}");
        }
    }
    for dir in ["topics/orders", "topics/orders/0", "slots/groups/07", "cluster", "cluster/controller"] {
        let dir = data.path(dir);
        assert!(!dir.join(OsStr::from_bytes(NAME)).exists(), "{}", dir.display());
        let moved = std::fs::read(dir.join("quarantine").join(OsStr::from_bytes(NAME))).unwrap();
        assert_eq!(moved, b"not kaas's", "{}", dir.display());
    }
}

#[test]
fn so_do_errors_and_dumps() {
    let data = Data::new();
    let missing = data.path("").join(OsStr::from_bytes(NAME));
    for subcommand in ["verify", "dump"] {
        let output = command(&[subcommand.as_ref(), missing.as_os_str()]);
        assert_eq!(output.status.code(), Some(2));
        assert!(said(&output).contains(SHOWN), "{}", said(&output));
    }
    // A whole data directory in one of such a name.
    let mut dir = OsString::from(data.path("").as_os_str());
    dir.push("/");
    dir.push(OsStr::from_bytes(NAME));
    std::fs::create_dir(&dir).unwrap();
    std::fs::rename(data.path("topics"), Path::new(&dir).join("topics")).unwrap();
    for args in
        [&["dump"][..], &["dump", "--json"], &["dump", "--records"], &["verify"], &["verify", "--json"]]
    {
        let mut args: Vec<&OsStr> = args.iter().map(OsStr::new).collect();
        let partition = Path::new(&dir).join("topics/orders/0");
        args.push(partition.as_os_str());
        let output = command(&args);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", said(&output));
        said(&output);
    }
}

#[test]
fn what_a_file_says_drives_no_terminal_either() {
    let data = Data::new();
    let id = r#"{"format":1,"topic":"or\u001b[2J\u009bders","topic_id":"BgYGBgYGBgYGBgYGBgYGBg"}"#;
    data.write("topics/orders/topic-id.json", id);
    let root = data.root().as_os_str();
    for args in [&["verify"][..], &["verify", "--json"], &["dump"], &["dump", "--json"]] {
        let mut args: Vec<&OsStr> = args.iter().map(OsStr::new).collect();
        args.push(root);
        let text = said(&command(&args));
        let shown = if args.contains(&OsStr::new("--json")) || args[0] == "dump" {
            r"\u001b[2J\u009b"
        } else {
            r"\x1b[2J\xc2\x9b"
        };
        assert!(text.contains(shown) || text.contains(r"\u001b[2J\xc2\x9b"), "{args:?}: {text}");
    }
}
