//! `kaas-engine qualify` as a process, on a directory of this machine: verdicts, exit codes, and what it leaves behind.
//!
//! What a mount does wrong is played by a second process whose answers are changed on their way (`sed` in its pipe): so
//! each property is seen to fail. Real mounts that do wrong are in the labs of `fault-injection`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_kaas-engine");

/// A directory that is not in memory, as `/tmp` is in some places.
fn place() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn command(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.arg("qualify").arg(dir).args(args);
    command
}

/// Runs it without latencies; the exit code and the JSON.
fn qualified(dir: &Path, args: &[&str]) -> (i32, Value) {
    let output = command(dir, &["--json", "--no-latencies"]).args(args).output().unwrap();
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!(
            "{error}: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )
    });
    (output.status.code().unwrap(), report)
}

/// Runs it where it cannot come to a verdict; what it complains about.
fn complaint(dir: &Path, args: &[&str]) -> String {
    let Output { status, stdout, stderr } = command(dir, &["--no-latencies"]).args(args).output().unwrap();
    let complaint = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(2), "{complaint}");
    assert!(stdout.is_empty());
    complaint
}

/// A second process whose answers go through `sed`.
fn peer_through(script: &Path) -> String {
    format!("sh -c '{PROGRAM} qualify-agent | sed -u -f {}'", script.display())
}

fn check<'a>(report: &'a Value, name: &str) -> &'a Value {
    let checks = report["checks"].as_array().unwrap();
    checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("no check {name}: {report}"))
}

fn failed(report: &Value) -> Vec<&str> {
    let checks = report["checks"].as_array().unwrap().iter();
    checks.filter(|check| check["outcome"] == "failed").map(|check| check["name"].as_str().unwrap()).collect()
}

#[test]
fn what_is_in_memory_is_unfit() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (code, report) = qualified(dir.path(), &[]);
    assert_eq!((code, failed(&report)), (11, vec!["mount_options"]), "{report}");
    assert_eq!(report["reasons"][0], "in memory: nothing survives a restart of the host");
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_directory_of_this_host_is_fit_for_one_broker_and_left_as_it_was() {
    let dir = place();
    fs::write(dir.path().join("neighbour"), "kept").unwrap();
    fs::create_dir(dir.path().join("~qualify-is-not-one")).unwrap();
    let page = place().keep().join("report & <more>.html");
    let html = page.to_str().unwrap();
    let output = command(dir.path(), &["--json", "--html", html]).output().unwrap();
    assert_eq!(output.status.code(), Some(10), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["format"], &report["verdict"]), (&1.into(), &"fit_for_one_broker".into()));
    assert_eq!((&report["clients"], &report["volume"]["family"]), (&"one".into(), &"local".into()));
    assert!(report["reasons"][0].as_str().unwrap().contains("one host"), "{report}");
    assert_eq!(failed(&report), Vec::<&str>::new());
    let passed = [
        "mount_options",
        "exclusive_create",
        "exclusive_mkdir",
        "rename_one_winner",
        "rename_replaces",
        "rename_births",
        "record_uncached",
        "fsync_visible",
        "listing_fresh",
    ];
    for name in passed {
        assert_eq!(check(&report, name)["outcome"], "passed", "{name}");
    }
    assert_eq!(check(&report, "fsync_durable")["outcome"], "not_tested");
    assert_eq!(check(&report, "locks")["outcome"], "noted");
    let rows = report["latencies"].as_array().unwrap();
    assert_eq!(rows.len(), 8);
    assert!(rows.iter().any(|row| row["title"] == "fence read, from the cache"), "{report}");
    for row in rows {
        let at = |name: &str| row[name].as_f64().unwrap();
        assert!(row["count"].as_u64().unwrap() > 0 && at("min_us") > 0.0, "{row}");
        assert!(at("p50_us") <= at("p99_us") && at("p99_us") <= at("p999_us"), "{row}");
        assert!(at("p999_us") <= at("max_us"), "{row}");
    }
    assert_eq!(report["throughput"].as_array().unwrap().len(), 2);
    stands_alone(&fs::read_to_string(&page).unwrap());
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(told, format!("kaas-engine: report with plots: {html}\n"));
    assert_eq!(names(page.parent().unwrap()), ["report & <more>.html"]);
    fs::remove_dir_all(page.parent().unwrap()).unwrap();
    assert_eq!(names(dir.path()), ["neighbour", "~qualify-is-not-one"]);
    assert_eq!(fs::read(dir.path().join("neighbour")).unwrap(), b"kept");
}

/// A page without anything from elsewhere, its elements closed, with the verdict and the plots.
fn stands_alone(html: &str) {
    assert!(html.contains("FIT FOR ONE BROKER") && html.contains("exclusive create"), "{html}");
    for loads in ["<script", "<link", "<img", "src=", "url(", "@import"] {
        assert!(!html.contains(loads), "{loads}");
    }
    assert_eq!(html.matches("://").count(), html.matches("xmlns=\"http://www.w3.org/2000/svg\"").count());
    for element in ["svg", "table", "tr", "td", "section", "figure", "div", "text", "g", "ul", "li", "dl"] {
        let opened =
            html.matches(&format!("<{element}>")).count() + html.matches(&format!("<{element} ")).count();
        assert_eq!(opened, html.matches(&format!("</{element}>")).count(), "{element}");
    }
    assert_eq!(html.matches("<svg").count(), 4, "the spread, and three panels of percentiles");
    assert_eq!(html.matches("class=\"median\"").count(), 8);
    assert!(!html.contains("NaN") && !html.contains("inf,"), "{html}");
}

#[test]
fn the_text_fits_a_terminal_and_says_the_verdict_first() {
    let dir = place();
    let output = command(dir.path(), &["--no-latencies"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.lines().next().unwrap().ends_with(": FIT FOR ONE BROKER"), "{text}");
    let long: Vec<_> = text.lines().skip(1).filter(|line| line.chars().count() > 80).collect();
    assert_eq!(long, Vec::<&str>::new());
    assert!(output.stderr.is_empty(), "no progress without a terminal");
}

#[test]
fn each_property_that_does_not_hold_is_found() {
    let everything_is_won = "/won/s/false/true/g";
    let nothing_is_won = "/won/s/true/false/g";
    let always_old = "s/\"newest\":[0-9]*/\"newest\":0/g";
    let absent = "s/\"absent\":0/\"absent\":1/";
    let torn = "s/\"torn\":0/\"torn\":2/";
    let short = "/glance/s/\"length\":[0-9]*/\"length\":7/";
    let old_names = "s/\"[0-9]*\\.renamed\"/\"other\"/g";
    for (lies, expected) in [
        (
            &[everything_is_won, always_old, absent, old_names][..],
            &[
                ("exclusive_create", "both processes created"),
                ("exclusive_mkdir", "both processes created"),
                ("rename_one_winner", "both of two renames"),
                ("rename_replaces", "the name was absent in 1 of"),
                ("rename_births", "files were missing"),
                ("record_uncached", "a record that was written was still not seen"),
                ("fsync_visible", "was fsynced and was still not seen"),
                ("listing_fresh", "the state before a rename"),
            ][..],
        ),
        (
            &[nothing_is_won, torn, short],
            &[
                ("exclusive_create", "neither process created"),
                ("rename_one_winner", "neither of two renames"),
                ("rename_replaces", "mixed or short in 2 of"),
                ("rename_births", "were not whole"),
                ("fsync_visible", "an appended block was fsynced and was still not seen"),
            ],
        ),
        (&["s/\"backwards\":0/\"backwards\":1/"], &[("record_uncached", "and then what was there before")]),
    ] {
        let dir = place();
        let script = tempfile::NamedTempFile::new().unwrap();
        fs::write(script.path(), lies.join("\n")).unwrap();
        let (code, report) = qualified(dir.path(), &["--peer", &peer_through(script.path())]);
        assert_eq!((code, &report["verdict"]), (11, &"unfit".into()), "{lies:?}: {report}");
        for (name, said) in expected {
            let found = check(&report, name);
            assert_eq!(found["outcome"], "failed", "{lies:?}: {found}");
            assert!(found["detail"].as_str().unwrap().contains(said), "{lies:?}: {found}");
            assert!(found["violations"].as_u64().unwrap() > 0);
            assert!(report["reasons"].to_string().contains(said), "{report}");
        }
        assert_eq!(names(dir.path()), Vec::<String>::new(), "{lies:?}");
    }
}

#[test]
fn what_a_restart_of_the_volume_loses_is_found() {
    let dir = place();
    let restart = |what: &str| format!("cd {}/~qualify-*/durable-* && {what}", dir.path().display());
    let zeros = "dd if=/dev/zero of=a-overwritten bs=4096 count=1 conv=notrunc status=none";
    let lost = format!("mv a-replaced gone && truncate -s 4096 b-4 && {zeros}");
    for (what, said) in [
        (
            lost.as_str(),
            &[
                "loses fsync: a file renamed over another is gone with its name",
                "loses fsync: a new file has 4096 bytes of 1048576",
                "loses fsync: a file overwritten in place has 65536 bytes of 65536 and not what was fsynced",
            ][..],
        ),
        // This process cannot restart what the directory is on, and it is seen.
        ("test -e a-1", &["16 files, all there after the command"]),
    ] {
        let (code, report) = qualified(dir.path(), &["--restart-command", &restart(what)]);
        let check = check(&report, "fsync_durable");
        let shown_nothing = if has_mount_ids() { "not_tested" } else { "passed" };
        let (expected, lost) = if said.len() == 1 { ((10, shown_nothing), 0) } else { ((11, "failed"), 3) };
        assert_eq!((code, check["outcome"].as_str().unwrap()), expected, "{what}: {report}");
        assert_eq!(check["violations"], lost);
        for said in said {
            assert!(check["detail"].as_str().unwrap().contains(said), "{what}: {check}");
        }
        assert_eq!(names(dir.path()), Vec::<String>::new(), "{what}");
    }
    let everything = format!("rm -r {}/~qualify-*", dir.path().display());
    let (code, report) = qualified(dir.path(), &["--restart-command", &everything]);
    let found = check(&report, "fsync_durable");
    assert_eq!((code, &found["violations"]), (11, &16.into()), "{report}");
    assert!(found["detail"].as_str().unwrap().contains("the directory of the files is gone"), "{found}");
    assert_eq!(names(dir.path()), Vec::<String>::new());
    let complaint = complaint(dir.path(), &["--restart-command", "exit 3"]);
    assert!(complaint.contains("restart command failed (exit status: 3)"), "{complaint}");
    assert_eq!(names(dir.path()), Vec::<String>::new());
}

/// Whether this kernel tells one mount from the next at the same place.
fn has_mount_ids() -> bool {
    kaas_substrate::probing::mounting(Path::new("/")).unique_id.is_some()
}

#[test]
fn a_restart_command_that_restarts_nothing_is_told_first() {
    if !has_mount_ids() {
        eprintln!("passed over: Linux before 6.8 does not tell mounts apart");
        return;
    }
    let dir = place();
    let output = command(dir.path(), &["--no-latencies", "--restart-command", "true"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(10), "{text}");
    let reasons = text.split("\n\n").next().unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        reasons
            .contains("not shown: whether what was fsynced survives a loss of power: --restart-command has"),
        "{text}"
    );
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("the volume stayed mounted"), "{text}");
}

#[test]
fn where_the_html_cannot_go_is_told_before_anything_is_tried() {
    let dir = place();
    let missing = dir.path().join("missing/report.html");
    let (file, not_a_directory) = (dir.path().join("file"), dir.path().join("file/report.html"));
    fs::write(&file, "").unwrap();
    let too_long = dir.path().join("x".repeat(255));
    for (path, said) in [
        (dir.path(), "a directory"),
        (&missing, "not found"),
        (&not_a_directory, "Not a directory"),
        (&too_long, "too long"),
        (Path::new("/proc/report.html"), "--html /proc/report.html"),
        (Path::new(".."), "not the name of a file"),
    ] {
        let began = Instant::now();
        let complaint = complaint(dir.path(), &["--duration", "20s", "--html", path.to_str().unwrap()]);
        assert!(complaint.contains("--html") && complaint.contains(said), "{complaint}");
        assert!(complaint.contains("hint:") && began.elapsed() < Duration::from_secs(10), "{complaint}");
        assert_eq!(names(dir.path()), ["file"]);
    }
}

#[test]
fn a_directory_that_is_removed_meanwhile_is_told_as_that() {
    for args in [&["--duration", "30s"][..], &["--duration", "30s", "--no-latencies"]] {
        let dir = place();
        let run = command(dir.path(), args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        until(|| names(dir.path()).len() == 1);
        let own = dir.path().join(&names(dir.path())[0]);
        until(|| fs::read_dir(&own).unwrap().count() > 5);
        // Whoever works in it may make something new meanwhile.
        until(|| fs::remove_dir_all(&own).is_ok());
        let Output { status, stdout, stderr } = run.wait_with_output().unwrap();
        let complaint = String::from_utf8(stderr).unwrap();
        assert_eq!((status.code(), stdout.len()), (Some(2), 0), "{complaint}");
        assert!(complaint.contains("was removed while this run worked in it"), "{complaint}");
        assert!(complaint.contains("let nothing remove"), "{complaint}");
        assert_eq!(names(dir.path()), Vec::<String>::new());
    }
}

#[test]
fn a_peer_that_cannot_be_worked_with_is_reported() {
    let dir = place();
    for (peer, said) in [
        ("no-such-command-here", "the peer has ended (exit status: 127)"),
        // As ssh ends where nobody answers, and where it cannot log in.
        ("sh -c 'exit 255'", "the peer has ended (exit status: 255)"),
        ("sleep 100;", "the peer: the first greeting did not return within 1 s; its command: sleep 100;"),
        ("yes", "no proper answer to the first greeting; it said: qualify-agent"),
        (&format!("timeout -s KILL 1.5 {PROGRAM}"), "the peer has ended"),
    ] {
        let timeout = if peer.contains("timeout") { "60s" } else { "1s" };
        let complaint = complaint(dir.path(), &["--duration", "1m", "--timeout", timeout, "--peer", peer]);
        assert!(complaint.contains(said) && complaint.contains("hint:"), "{peer}: {complaint}");
        assert_eq!(names(dir.path()), Vec::<String>::new(), "{peer}");
    }
    let other = place();
    let second = other.path().to_str().unwrap();
    for there in [&["--second-mount", second][..], &["--peer", PROGRAM, "--peer-dir", second]] {
        let complaint = complaint(dir.path(), there);
        assert!(complaint.contains("it is not the same volume; here: "), "{complaint}");
        assert!(complaint.contains("; there: ") && complaint.contains("--peer-dir"), "{complaint}");
        assert_eq!((names(dir.path()).len(), names(other.path()).len()), (0, 0));
    }
    let missing = other.path().join("missing");
    let no_dir = complaint(dir.path(), &["--peer", PROGRAM, "--peer-dir", missing.to_str().unwrap()]);
    assert!(no_dir.contains("the peer: opening") && no_dir.contains("not found"), "{no_dir}");
    assert!(no_dir.contains("--peer-dir: as its host has it"), "{no_dir}");
    // Of another version: it speaks another protocol.
    let script = tempfile::NamedTempFile::new().unwrap();
    fs::write(
        script.path(),
        "s/\"protocol\":[0-9]*,\"version\":\"[^\"]*\"/\"protocol\":1,\"version\":\"0.0.7\"/",
    )
    .unwrap();
    let older = complaint(dir.path(), &["--peer", &peer_through(script.path())]);
    assert!(
        older.contains("the peer's kaas-engine is version 0.0.7") && older.contains("same version"),
        "{older}"
    );
    assert_eq!(names(dir.path()), Vec::<String>::new());
}

#[test]
fn a_directory_that_cannot_be_used_is_reported() {
    let dir = place();
    let missing = complaint(&dir.path().join("missing"), &[]);
    assert!(missing.contains("not found") && missing.contains("hint:"), "{missing}");
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(complaint(&file, &[]).contains("Not a directory"));
    for wrong in
        [&["--duration", "soon"][..], &["--peer", "x", "--second-mount", "/y"], &["--peer-dir", "/y"]]
    {
        assert!(complaint(dir.path(), wrong).contains("error:"));
    }
}

#[test]
fn what_crashed_runs_left_is_removed_and_what_goes_on_is_not() {
    let dir = place();
    let make = |name: &str| {
        let path = dir.path().join(name);
        fs::create_dir_all(path.join("deep")).unwrap();
        fs::write(path.join("deep/file"), "x").unwrap();
        fs::File::create(path.join("lock")).unwrap()
    };
    drop(make("~qualify-00000000000000aa"));
    let held = make("~qualify-00000000000000bb");
    held.lock().unwrap();
    drop(make("~qualify-other"));
    let (_, report) = qualified(dir.path(), &[]);
    assert_eq!(report["leftovers_removed"], serde_json::json!(["~qualify-00000000000000aa"]));
    assert_eq!(report["leftovers_left"], serde_json::json!(["~qualify-00000000000000bb"]));
    assert_eq!(names(dir.path()), ["~qualify-00000000000000bb", "~qualify-other"]);
    assert!(dir.path().join("~qualify-00000000000000bb/deep/file").exists());
}

#[test]
fn a_run_that_is_killed_leaves_nothing() {
    let dir = place();
    let mut run = command(dir.path(), &["--duration", "1h"]).stdout(Stdio::null()).spawn().unwrap();
    until(|| names(dir.path()).len() == 1);
    // Both processes are at work.
    until(|| fs::read_dir(dir.path().join(&names(dir.path())[0])).unwrap().count() > 3);
    run.kill().unwrap();
    run.wait().unwrap();
    until(|| names(dir.path()).is_empty());
}

fn until(done: impl Fn() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(60), "not in a minute");
        thread::sleep(Duration::from_millis(20));
    }
}
