//! `kaas-engine verify` as a command: what it prints, its exit codes, and that it asks before it repairs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

#[path = "support/data.rs"]
mod data;
#[path = "support/looking.rs"]
mod looking;
#[path = "support/mending.rs"]
mod mending;
mod support;

use std::io::{Read as _, Write as _};
use std::process::{Command, Output, Stdio};

use data::Data;
use looking::change;
use mending::contents;

fn command(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kaas-engine")).arg("verify").args(args).output().unwrap()
}

#[test]
fn the_command_reports_and_exits() {
    let data = Data::new();
    let root = data.root().to_str().unwrap();
    let output = command(&[root]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(
        text.contains("2 topics, 6 partitions, 1 slot") && text.ends_with("Clean: nothing is wrong.\n"),
        "{text}"
    );
    assert!(output.stderr.is_empty(), "no progress without a terminal");

    let partition = data.path("topics/orders/1");
    let log = partition.join("00000001-00000000000000000000.log");
    std::fs::write(partition.join("~tmp-x"), "").unwrap();
    assert_eq!(command(&[root]).status.code(), Some(0), "infos are no findings");
    change(&log, |bytes| bytes[70] ^= 1);
    let output = command(&[root]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    for part in ["ERRORS (1)", "damaged-batch", "byte 0, offset 0", "means:", "to do:", "Found 1 error"] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
    assert!(text.contains(partition.to_str().unwrap()) && !text.contains("~tmp-x"), "{text}");
    let text = String::from_utf8(command(&["--all", root]).stdout).unwrap();
    assert!(text.contains("~tmp-x"), "{text}");

    let output = command(&["--json", "--threads", "1", partition.to_str().unwrap(), root]);
    assert_eq!(output.status.code(), Some(1));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["format"], &json["verdict"]), (&1.into(), &"findings".into()));
    assert_eq!((&json["partitions"], &json["errors"]), (&7.into(), &2.into()));
    let finding = &json["findings"][0];
    assert_eq!((&finding["severity"], &finding["code"]), (&"error".into(), &"damaged-batch".into()));
    assert_eq!(finding["file"], log.canonicalize().unwrap().to_str().unwrap());
    assert_eq!((&finding["position"], &finding["offset"]), (&0.into(), &0.into()));

    for args in [vec![], vec!["--nonsense", root], vec!["--repair", root], vec!["--threads", "0", root]] {
        assert_eq!(command(&args).status.code(), Some(2), "{args:?}");
    }
    for wrong in [data.path("missing"), data.path("cluster/meta.json"), data.path("slots/groups/07/fence")] {
        let output = command(&[wrong.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(2), "{}", wrong.display());
        assert!(String::from_utf8(output.stderr).unwrap().contains("hint:"));
    }
    // From within: a relative path says as much as an absolute one.
    let output = Command::new(env!("CARGO_BIN_EXE_kaas-engine"))
        .args(["verify", "."])
        .current_dir(data.path("topics/payments/0"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn the_command_repairs() {
    let data = Data::new();
    let root = data.root().to_str().unwrap();
    let text = |output: Output| String::from_utf8(output.stdout).unwrap();
    let output = command(&["--repair", "--yes", root]);
    assert_eq!(output.status.code(), Some(0), "nothing to repair");
    assert!(!text(output).contains("REPAIRED"));
    for args in
        [&["--json", root][..], &["--json", "--repair", "--yes", root], &["--json", "--dry-run", root]]
    {
        let json: serde_json::Value = serde_json::from_slice(&command(args).stdout).unwrap();
        assert_eq!(json["repairs"], serde_json::json!([]), "{args:?}");
    }

    let log = data.path("topics/orders/1/00000001-00000000000000000000.log");
    change(&log, |bytes| bytes[70] ^= 1);
    std::fs::write(data.path("topics/payments/2/notes.txt"), "mine").unwrap();
    let before = contents(data.root());
    let output = command(&["--repair", root]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("--yes"));
    let output = command(&["--dry-run", root]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(output);
    for part in [
        "WOULD BE REPAIRED (2 directories)",
        "claim epoch 2",
        "would be lost: offsets 0 to 1",
        "Would be lost: 2 offsets",
    ] {
        assert!(said.contains(part), "{part} is not in:\n{said}");
    }
    assert!(!said.contains("Lost:") && !said.contains("    lost:"), "nothing is, so far:\n{said}");
    assert!(said.lines().all(|line| line.chars().count() <= 100), "{said}");
    assert_eq!(contents(data.root()), before);

    let output = command(&["--repair", "--yes", "--json", root]);
    assert_eq!(output.status.code(), Some(1), "offsets are lost");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["verdict"], &json["partitions"]), (&"clean".into(), &6.into()));
    let repairs = json["repairs"].as_array().unwrap();
    assert_eq!(repairs.len(), 2);
    assert_eq!((&repairs[0]["outcome"], &repairs[0]["lost"][0]["to"]), (&"repaired".into(), &2.into()));
    assert!(repairs[1]["directory"].as_str().unwrap().ends_with("topics/payments/2"), "{repairs:?}");
    assert!(data.path("topics/payments/2/quarantine/notes.txt").exists());
    let output = command(&["--repair", "--yes", root]);
    assert_eq!(output.status.code(), Some(0), "{}", text(output));
}

#[test]
fn the_command_says_what_it_may_not_give_up() {
    let data = Data::new();
    let root = data.root().to_str().unwrap();
    data.write("topics/orders/config.00000001.2.json", "?");
    // From within the data directory, too: who else writes there is found out.
    let topic = data.path("topics/orders");
    let output = command(&["--repair", "--yes", topic.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    for part in ["NOT REPAIRED (1 directory)", "left as it is: config.00000001.2.json", "--accept-loss"] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
    let output = command(&["--repair", "--yes", "--accept-loss", topic.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "something was lost");
    let text = String::from_utf8(output.stdout).unwrap();
    for part in ["REPAIRED (1 directory)", "lost: configs that were changed after", "Clean", "memory."] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
    assert_eq!(command(&[root]).status.code(), Some(0));
    assert_eq!(command(&["--accept-loss", root]).status.code(), Some(2), "only with a repair");

    let json: serde_json::Value = serde_json::from_slice(&command(&["--json", root]).stdout).unwrap();
    assert!(json["peak_memory_bytes"].as_u64().unwrap() > 1 << 20, "{json}");
}

/// The command on a terminal of its own, with `typed` on it once it asks.
fn on_a_terminal(args: &str, typed: &str) -> (Option<i32>, String) {
    let command = format!("exec {} verify {args}", env!("CARGO_BIN_EXE_kaas-engine"));
    let mut script = Command::new("script")
        .args(["--quiet", "--return", "--command", &command, "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("`script` of util-linux makes a terminal");
    let (mut keyboard, mut screen) = (script.stdin.take(), script.stdout.take().unwrap());
    let mut said = Vec::new();
    loop {
        let mut piece = [0; 4096];
        let read = screen.read(&mut piece).unwrap();
        said.extend_from_slice(&piece[..read]);
        if read == 0 {
            break;
        }
        let asks = String::from_utf8_lossy(&said).contains("[y/N] ");
        if let Some(mut keyboard) = keyboard.take_if(|_| asks) {
            keyboard.write_all(typed.as_bytes()).unwrap();
        }
    }
    (script.wait().unwrap().code(), String::from_utf8(said).unwrap())
}

#[test]
fn a_repair_asks_on_a_terminal_and_does_nothing_without_a_yes() {
    let data = Data::new();
    let root = data.root().to_str().unwrap();
    let log = data.path("topics/orders/1/00000001-00000000000000000000.log");
    change(&log, |bytes| bytes[70] ^= 1);
    let before = contents(data.root());
    for answer in ["n\n", "\n", "", "yes please\n"] {
        let (code, said) = on_a_terminal(&format!("--repair {root}"), answer);
        assert_eq!(code, Some(2), "{answer:?}: {said}");
        for part in [
            "damaged-batch",
            "Would be lost: 2 offsets, of 1 directory:",
            "    offsets 0 to 1 (2)",
            "next epoch of 1 ",
            "Go on? [y/N]",
            "nothing was changed",
        ] {
            assert!(said.contains(part), "{answer:?}: {part} is not in:\n{said}");
        }
        assert_eq!(contents(data.root()), before, "{answer:?}");
    }
    let (code, said) = on_a_terminal(&format!("--repair {root}"), "\x03");
    assert_eq!(code, Some(130), "Ctrl-C: {said}");
    assert!(said.contains("interrupted; nothing was changed"), "{said}");
    assert_eq!(contents(data.root()), before);
    let (code, said) = on_a_terminal(&format!("--repair {root}"), "y\n");
    assert_eq!(code, Some(1), "offsets are lost: {said}");
    assert!(said.contains("REPAIRED (1 directory)") && said.contains("lost: offsets 0 to 1"), "{said}");
    assert_ne!(contents(data.root()), before);
    // Nothing is wrong, so nothing is asked.
    let (code, said) = on_a_terminal(&format!("--repair {root}"), "");
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("Go on?"), "{said}");
}
