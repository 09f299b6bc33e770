//! Every way in which a start fails on its data directory or address: the exit code, what is wrong, what to do about it. See
//! "Exit codes" in docs/operating.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod durability_support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use durability_support::kaas;
use durability_support::small_disk::SmallDisk;
use tempfile::TempDir;

/// A start that is to fail: the exit code, and what it says.
fn start(data: &Path, arguments: &[&str]) -> (i32, String) {
    start_by(&[env!("CARGO_BIN_EXE_kaas")], data, arguments)
}

/// The same by way of another program.
fn start_by(program: &[&str], data: &Path, arguments: &[&str]) -> (i32, String) {
    let listen = if arguments.contains(&"--listen") { &[][..] } else { &["--listen", "127.0.0.1:0"] };
    let output = Command::new("timeout")
        .arg(durability_support::PATIENCE.as_secs().to_string())
        .args(program)
        .args(["--log-level", "error", "--data-dir"])
        .arg(data)
        .args(listen)
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.stdout.is_empty(), "it starts: {}", String::from_utf8_lossy(&output.stdout));
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

/// It ends with this code, and says these words and this hint.
#[track_caller]
fn refused(outcome: (i32, String), code: i32, words: &str, hint: &str) {
    let (found, said) = outcome;
    assert_eq!(found, code, "{said}");
    let (problem, hinted) = said.split_once("\n  hint: ").unwrap_or_else(|| panic!("no hint: {said}"));
    assert!(problem.starts_with("kaas: ") && problem.contains(words), "{words:?} is not in: {said}");
    assert!(hinted.contains(hint), "{hint:?} is not in: {said}");
}

/// A data directory that a broker has been started on.
fn used() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut broker = kaas(&dir.path().join("data")).start().unwrap();
    broker.terminate(durability_support::PATIENCE).unwrap();
    dir
}

/// Starts on a used data directory that `change` was done to.
fn start_after(arguments: &[&str], change: impl FnOnce(&Path)) -> (i32, String) {
    let dir = used();
    let data = dir.path().join("data");
    change(&data);
    start(&data, arguments)
}

#[test]
fn what_is_no_directory() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    refused(start(&file, &[]), 3, "Not a directory", "name another one with --data-dir");
    refused(start(&file.join("below"), &[]), 3, "Not a directory", "name another one with --data-dir");
    let link = dir.path().join("link");
    std::os::unix::fs::symlink("nowhere", &link).unwrap();
    refused(start(&link, &[]), 3, "No such file", "links on it that lead nowhere");
    refused(start(Path::new("/proc/kaas"), &[]), 3, "/proc/kaas", "check the path");
}

#[test]
fn what_is_in_use_for_something_else() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("meta.properties"), "cluster.id=abc\n").unwrap();
    fs::create_dir(dir.path().join("orders-0")).unwrap();
    let outcome = start(dir.path(), &[]);
    refused(outcome, 3, "holds no data of kaas, but something else: ", "`kaas-engine import`");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
}

#[test]
fn what_another_broker_has() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let broker = kaas(&data).start().unwrap();
    let words = format!("in use by another kaas process (pid {})", broker.pid());
    refused(start(&data, &[]), 3, &words, "stop that one, or start this one with another --data-dir");
}

#[test]
fn what_is_another_nodes_or_clusters() {
    refused(start_after(&["--node-id", "7"], |_| {}), 3, "belongs to node 1, not 7", "--node-id 1");
    let outcome = start_after(&["--cluster-id", "another"], |_| {});
    refused(outcome, 3, "not another", "which volume is mounted there");
}

#[test]
fn what_is_damaged_or_gone() {
    let verify = "kaas-engine verify ";
    let outcome = start_after(&[], |data| fs::remove_file(data.join("cluster/meta.json")).unwrap());
    refused(outcome, 3, "no cluster/meta.json", "restore cluster/meta.json from a backup");
    let outcome = start_after(&[], |data| fs::remove_dir_all(data.join("cluster")).unwrap());
    refused(outcome, 3, "no cluster/meta.json", "restore cluster/meta.json from a backup");
    let outcome = start_after(&[], |data| fs::write(data.join("cluster/meta.json"), "{").unwrap());
    refused(outcome, 3, "cluster/meta.json is damaged", verify);
    let outcome = start_after(&[], |data| fs::remove_file(data.join("cluster/controller/fence")).unwrap());
    refused(outcome, 3, "open cluster/controller/fence: not found", verify);
    let producer_ids = "cluster/producer-ids.00000001.1.json";
    let outcome = start_after(&[], |data| fs::write(data.join(producer_ids), "x").unwrap());
    refused(outcome, 3, "producer-ids.00000001.1.json is damaged", verify);
    let outcome = start_after(&[], |data| {
        fs::remove_dir_all(data.join("topics")).unwrap();
        fs::write(data.join("topics"), "x").unwrap();
    });
    refused(outcome, 3, "Not a directory", verify);
}

#[test]
fn what_it_has_no_right_to() {
    let dir = tempfile::tempdir().unwrap();
    let closed = dir.path().join("closed");
    fs::create_dir(&closed).unwrap();
    let set = |mode| fs::set_permissions(&closed, fs::Permissions::from_mode(mode)).unwrap();
    set(0o500);
    let outcome = if rustix::process::geteuid().is_root() {
        // It has every right, until that is taken from it.
        let without = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"];
        start_by(&[&without[..], &[env!("CARGO_BIN_EXE_kaas")]].concat(), &closed.join("data"), &[])
    } else {
        start(&closed.join("data"), &[])
    };
    set(0o700);
    let hint = if rustix::process::geteuid().is_root() { "root_squash" } else { "chown -R " };
    refused(outcome, 3, "Permission denied", hint);
}

#[test]
fn a_volume_that_is_full_or_read_only() {
    let Some(disk) = SmallDisk::mount(16) else { return };
    let data = disk.path().join("data");
    disk.fill();
    refused(start(&data, &[]), 3, "No space left on device", "df -h ");
    disk.free();
    disk.take_inodes();
    refused(start(&disk.path().join("other"), &[]), 3, "No space left on device", "df -i ");
    disk.free_inodes();
    disk.make_read_only();
    let (code, said) = start(&disk.path().join("third"), &[]);
    assert_eq!(code, 3, "{said}");
    assert!(said.contains("it is mounted read-only; mount it with rw"), "{said}");
}

#[test]
fn a_volume_that_is_not_mounted() {
    let dir = tempfile::tempdir().unwrap();
    // The mount point is there, the volume is not.
    let outcome = start(dir.path(), &["--require-data"]);
    refused(
        outcome,
        3,
        "holds no data (no cluster/), and --require-data is given",
        "mount the volume that holds it",
    );
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is touched");
    let absent = dir.path().join("data");
    refused(start(&absent, &["--require-data"]), 3, "holds no data", "leave --require-data out");
    assert!(!absent.exists());

    // The volume is there, and what says which cluster it is of is not.
    let without_cluster = |data: &Path| fs::remove_dir_all(data.join("cluster")).unwrap();
    for arguments in [&[][..], &["--require-data"]] {
        refused(
            start_after(arguments, without_cluster),
            3,
            "holds topics or slots but no cluster/meta.json",
            "restore cluster/meta.json",
        );
    }

    // A first start tells, and later ones do not.
    let command = kaas(&absent).arg("--cluster-id").arg("mine");
    let mut broker = command.start().unwrap();
    let told = "the data directory was empty: this is a new cluster";
    let said = broker.said();
    assert!(
        said.contains(told) && said.contains("cluster_id=mine") && said.contains("mounted_on=/"),
        "{said}"
    );
    broker.kill().unwrap();
    let broker = command.arg("--require-data").start().unwrap();
    assert!(!broker.said().contains(told));
}

#[test]
fn a_file_system_in_memory_is_warned_of() {
    let told = "this file system is in memory: nothing survives a restart of the host";
    let in_memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let said = kaas(&in_memory.path().join("data")).start().unwrap().said();
    assert!(said.contains(told), "{said}");
    let on_disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let said = kaas(&on_disk.path().join("data")).start().unwrap().said();
    assert!(!said.contains(told), "{said}");
}

#[test]
fn an_address_that_cannot_be_had() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    refused(start(&data, &["--listen", &address]), 4, "the port is in use by another process", "ss -ltnp");
    let outcome = start(&data, &["--listen", "192.0.2.1:9092"]);
    refused(outcome, 1, "cannot listen on 192.0.2.1:9092", "an address of this host");
    let outcome = start(&data, &["--listen", "no-such-host.invalid:9092"]);
    refused(outcome, 2, "no-such-host.invalid", "check the name");
    assert!(!data.exists());
}

#[test]
fn too_few_file_descriptors() {
    let dir = tempfile::tempdir().unwrap();
    let few = ["sh", "-c", "ulimit -n 8; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_kaas")];
    let outcome = start_by(&few, &dir.path().join("data"), &[]);
    refused(outcome, 3, "no file descriptor is left", "ulimit -n");
}
