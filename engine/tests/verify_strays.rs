//! What does not belong into a data directory, or stands in the place of what does: who put it there is told, nobody waits for
//! it, and a repair leaves it alone.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

#[path = "support/data.rs"]
mod data;
#[path = "support/looking.rs"]
mod looking;
#[path = "support/mending.rs"]
mod mending;
mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use data::{Data, SLOT};
use kaas_engine::dump::{DumpOptions, dump};
use kaas_engine::verify::{Kind, Severity};
use looking::{bad, options};
use mending::contents;

/// A directory of each kind.
const DIRS: [&str; 8] =
    ["", "topics", "topics/orders", "topics/orders/0", "slots", "slots/groups", SLOT, "cluster"];

#[test]
fn what_is_known_by_its_name_is_no_fault() {
    let data = Data::new();
    let files = [
        ".manifest.00000001.1.json.swp",
        "._fence",
        ".DS_Store",
        "Thumbs.db",
        "#x#",
        ".nfs80",
        "desktop.ini",
    ];
    let dirs = ["lost+found", ".snapshot", "@eaDir", ".Trash-1000"];
    for dir in DIRS {
        for file in files {
            std::fs::write(data.path(dir).join(file), "?").unwrap();
        }
        for inner in dirs {
            std::fs::create_dir_all(data.path(dir).join(inner).join("2024-01-01/0")).unwrap();
        }
        // As Emacs makes it: it leads nowhere.
        std::os::unix::fs::symlink("me@host.123:456", data.path(dir).join(".#fence")).unwrap();
    }
    let report = data.assert_clean();
    let known = report.findings.iter().filter(|finding| finding.kind == Kind::KnownStray);
    let known: Vec<_> = known.map(|finding| finding.file.as_path()).collect();
    // At the top fsck's directory is nothing to talk about.
    assert_eq!(known.len(), DIRS.len() * (files.len() + dirs.len() + 1) - 1, "{known:#?}");
    assert_eq!(report.topics, 2);
    assert_eq!(data.repair(&options()), []);
}

#[test]
fn a_directory_that_is_no_topic_is_a_warning_unless_it_may_hold_records() {
    let data = Data::new();
    for (name, inner) in [("backup", ""), ("scripts", "bin/notes.txt"), ("old", "readme/of/x.json")] {
        let dir = data.path("topics").join(name);
        std::fs::create_dir(&dir).unwrap();
        if !inner.is_empty() {
            std::fs::create_dir_all(dir.join(inner).parent().unwrap()).unwrap();
            std::fs::write(dir.join(inner), "x").unwrap();
        }
        let report = data.verify("");
        let found = bad(&report);
        assert_eq!(found.len(), 1, "{name}: {found:#?}");
        assert_eq!((found[0].kind, found[0].severity), (Kind::UnknownDirectory, Severity::Warning), "{name}");
        assert_eq!((found[0].file.as_path(), report.topics), (&*Path::new("topics").join(name), 2));
        let before = contents(data.root());
        let repaired = data.repair(&options());
        assert!(repaired.iter().all(|repaired| repaired.steps.is_empty()), "{repaired:#?}");
        assert_eq!(contents(data.root()), before);
        std::fs::remove_dir_all(&dir).unwrap();
    }
    for inner in [
        "0/x",
        "00000000000000000000.log",
        "orders-0/00000000000000000000.log",
        "x/00000001-00000000000000000000.log.bak",
        "fence",
        "a/b/c/d",
        "journal.00000001.1.jsonl",
    ] {
        let dir = data.path("topics/backup");
        std::fs::create_dir_all(dir.join(inner).parent().unwrap()).unwrap();
        std::fs::write(dir.join(inner), "x").unwrap();
        let found = data.assert_found(Kind::TopicIdMissing, "topics/backup/topic-id.json");
        assert_eq!(found.severity, Severity::Error, "{inner}");
        std::fs::remove_dir_all(&dir).unwrap();
    }
    data.assert_clean();
}

#[test]
fn a_file_that_is_too_long_is_damaged() {
    let data = Data::with_snapshot();
    for (name, kind) in [
        ("topics/orders/0/claim.00000001", Kind::ClaimDamaged),
        ("topics/orders/0/partition.json", Kind::IdentityDamaged),
        ("topics/orders/0/manifest.00000001.1.json", Kind::ManifestDamaged),
        ("topics/orders/topic-id.json", Kind::TopicIdDamaged),
        ("topics/orders/config.00000001.1.json", Kind::TopicConfigDamaged),
        ("cluster/meta.json", Kind::ClusterMetaDamaged),
        ("cluster/producer-ids.00000001.1.json", Kind::SettingsDamaged),
        ("cluster/controller/claim.00000001", Kind::ClaimDamaged),
    ] {
        let path = newest(&data.path(name));
        let kept = std::fs::read(&path).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(20 << 30).unwrap();
        let report = data.verify("");
        let found = report.findings.iter().find(|finding| finding.severity > Severity::Info).unwrap();
        assert_eq!(found.kind, kind, "{name}: {:#?}", report.findings);
        assert!(
            report.findings.iter().all(|finding| finding.kind != Kind::Unreadable),
            "{name}: {:#?}",
            report.findings
        );
        file.set_len(0).unwrap();
        std::fs::write(&path, kept).unwrap();
        data.assert_clean();
    }
}

/// The file itself, or the one of a higher version, whose number the test does not know.
fn newest(path: &Path) -> PathBuf {
    if path.exists() {
        return path.to_owned();
    }
    let prefix = path.file_name().unwrap().to_str().unwrap().split('.').next().unwrap().to_owned() + ".";
    let names = std::fs::read_dir(path.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path());
    names.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(&prefix)).max().unwrap()
}

/// What is put in the place of a file, which is kept elsewhere.
const TYPES: [(&str, &str); 5] = [
    ("link", "it is a symbolic link, where kaas has a file"),
    ("pipe", "it is a named pipe, where kaas has a file"),
    ("socket", "it is a socket, where kaas has a file"),
    ("dir", "it is a directory, where kaas has a file"),
    ("device", "it is a device, where kaas has a file"),
];

/// False if this user may not make one.
fn put(kind: &str, path: &Path, kept: &Path) -> bool {
    match kind {
        "link" => std::os::unix::fs::symlink(kept, path).unwrap(),
        "pipe" => assert!(Command::new("mkfifo").arg(path).status().unwrap().success()),
        "socket" => drop(std::os::unix::net::UnixListener::bind(path).unwrap()),
        "dir" => std::fs::create_dir(path).unwrap(),
        _ => {
            let made = Command::new("mknod")
                .arg(path)
                .args(["c", "1", "3"])
                .stderr(std::process::Stdio::null())
                .status();
            return made.unwrap().success();
        }
    }
    true
}

/// Ends the test if `work` waits for the other end of something.
fn in_time<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || drop(done.send(work())));
    is_done.recv_timeout(Duration::from_secs(60)).unwrap_or_else(|_| panic!("{what} hangs, or has failed"))
}

/// The names in a directory; a pipe is not to be read.
fn names(dir: &Path) -> Vec<PathBuf> {
    let mut names: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    names
}

fn files(root: &Path) -> Vec<String> {
    let found = contents(root);
    found.into_keys().filter(|name| root.join(name).is_file()).collect()
}

#[test]
fn something_else_in_the_place_of_a_file_is_named_and_nobody_waits_for_it() {
    let data = Data::with_snapshot();
    let kept = tempfile::tempdir().unwrap();
    let kept = kept.path().join("kept");
    let data = std::sync::Arc::new(data);
    // One partition is enough.
    for name in
        files(data.root()).into_iter().filter(|name| !name.contains("payments") && !name.contains("orders/1"))
    {
        let path = data.path(&name);
        for (kind, problem) in TYPES {
            let what = format!("{kind} as {name}");
            std::fs::rename(&path, &kept).unwrap();
            let before = std::fs::read(&kept).unwrap();
            if put(kind, &path, &kept) {
                let shared = std::sync::Arc::clone(&data);
                let report = in_time(&what, move || shared.verify(""));
                let told = report.findings.iter().filter(|finding| finding.file == Path::new(&name));
                let told: Vec<_> = told.map(|finding| (finding.kind, finding.problem.as_str())).collect();
                assert!(told.contains(&(Kind::WrongType, problem)), "{what}: {:#?}", report.findings);
                assert!(told.iter().all(|(kind, _)| *kind != Kind::UnknownFile), "{what}: {told:#?}");
                assert!(
                    report.findings.iter().all(|finding| finding.kind != Kind::Unreadable),
                    "{what}: {:#?}",
                    report.findings
                );

                let shared = std::sync::Arc::clone(&data);
                in_time(&what, move || {
                    let options = DumpOptions::default();
                    dump(&*shared.volume(), Path::new(""), &options, &mut std::io::sink())
                })
                .unwrap();

                let around = names(path.parent().unwrap());
                let shared = std::sync::Arc::clone(&data);
                let options =
                    kaas_engine::verify::Options { accept_loss: true, brokers_stopped: true, ..options() };
                let repaired = in_time(&what, move || shared.repair(&options));
                let done: Vec<_> = repaired.iter().filter(|repaired| !repaired.steps.is_empty()).collect();
                assert!(done.is_empty(), "{what}: {done:#?}");
                assert_eq!(names(path.parent().unwrap()), around, "{what}");
                assert_eq!(std::fs::read(&kept).unwrap(), before, "{what}");
                if kind == "dir" { std::fs::remove_dir(&path) } else { std::fs::remove_file(&path) }.unwrap();
            }
            std::fs::rename(&kept, &path).unwrap();
        }
    }
    data.assert_clean();
}

#[test]
fn a_link_in_the_place_of_a_directory_is_named() {
    let data = Data::new();
    let kept = tempfile::tempdir().unwrap();
    let kept = kept.path().join("kept");
    for name in [
        "topics/orders/1",
        "topics/orders/2",
        "topics/orders",
        "topics",
        "slots",
        "slots/groups",
        SLOT,
        "cluster",
        "cluster/controller",
    ] {
        let path = data.path(name);
        std::fs::rename(&path, &kept).unwrap();
        std::os::unix::fs::symlink(&kept, &path).unwrap();
        let report = data.verify("");
        let told = report.findings.iter().filter(|finding| finding.file == Path::new(name));
        let told: Vec<_> = told.map(|finding| (finding.kind, finding.problem.as_str())).collect();
        let expected = (Kind::WrongType, "it is a symbolic link, where kaas has a directory");
        assert!(told.contains(&expected), "{name}: {:#?}", report.findings);
        let before = contents(&kept);
        data.repair(&options());
        assert_eq!(contents(&kept), before, "{name}");
        assert!(path.is_symlink(), "{name}");
        std::fs::remove_file(&path).unwrap();
        std::fs::rename(&kept, &path).unwrap();
    }
    data.assert_clean();
}

#[test]
fn a_directory_that_may_not_be_looked_into_is_a_finding_beside_the_rest() {
    let data = Data::new();
    let name = data.path("topics/orders/0");
    // Whoever runs this may be root, so the command runs as nobody.
    let open = |path: &Path, mode| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    open(data.root(), 0o755);
    open(&name, 0);
    let output = Command::new("setpriv")
        .args([
            "--reuid",
            "65534",
            "--regid",
            "65534",
            "--clear-groups",
            env!("CARGO_BIN_EXE_kaas-engine"),
            "verify",
        ])
        .arg(data.root())
        .output();
    open(&name, 0o755);
    let Ok(output) = output else { return };
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    if text.contains("setresuid") || text.contains("setpriv") || text.is_empty() {
        // This user may not become another one, or that one may not run the command.
        return;
    }
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("unreadable") && text.contains("Permission denied"), "{text}");
    assert!(text.contains("2 topics, 6 partitions"), "{text}");
}
