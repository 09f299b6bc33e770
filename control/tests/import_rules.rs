//! Who may import whom, and what only the substrate may do. Looks at the whole workspace.
//!
//! The edges are those of ARCHITECTURE: substrate, config <- engine <- broker -> protocol; substrate, engine <- control <- broker,
//! operator; substrate <- fault-injection; benches, lab -> anything. The sources are scanned for file system calls, `unsafe`
//! and overlong files.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/rust_source.rs"]
mod rust_source;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use rust_source::{Code, without_tests};
use serde_json::Value;

/// Most lines of a file, tests within it not counted.
const LINES_MAX: usize = 600;

/// What a crate may depend on within the workspace: normally (or in its build), and in its tests besides.
const EDGES: &[(&str, &[&str], &[&str])] = &[
    ("kaas-substrate", &[], &[]),
    ("kaas-config", &[], &[]),
    ("kaas-engine", &["kaas-substrate", "kaas-config"], &["kaas-fault-injection"]),
    ("kaas-fault-injection", &["kaas-substrate"], &["kaas-engine"]),
    ("kaas-model", &[], &[]),
    ("kaas-explorer", &["kaas-substrate", "kaas-engine", "kaas-fault-injection"], &[]),
    ("kaas-protocol", &[], &[]),
    ("kaas-control", &["kaas-substrate", "kaas-engine"], &[]),
    (
        "kaas-broker",
        &["kaas-substrate", "kaas-config", "kaas-engine", "kaas-control", "kaas-protocol"],
        &["kaas-fault-injection"],
    ),
    ("kaas-operator", &["kaas-substrate", "kaas-engine", "kaas-control"], &[]),
];

/// Crates that may depend on any other.
const FREE: &[&str] = &["kaas-benches", "kaas-lab"];

/// Crates whose tests compare with the crate kafka-protocol: our codec, and plain record batches.
const ORACLE_USERS: &[&str] = &["kaas-protocol", "kaas-engine"];

/// Crates that know no async runtime, not even through a dependency.
const SYNCHRONOUS: &[&str] = &["kaas-substrate", "kaas-config", "kaas-engine", "kaas-protocol"];

/// The file system, by any name.
const FILE_SYSTEM: &[&str] = &[
    "std::fs",
    "rustix::fs",
    "tokio::fs",
    "std::os::unix::fs",
    "std::os::linux::fs",
    "rustix::mount",
    "libc",
    "nix",
    "memmap2",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum DependencyKind {
    Normal,
    Build,
    Dev,
}

#[derive(Debug)]
struct Package {
    name: String,
    dependencies: Vec<(String, DependencyKind)>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn packages() -> Vec<Package> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    parse_packages(&metadata)
}

fn parse_packages(metadata: &Value) -> Vec<Package> {
    let text = |value: &Value, key: &str| value[key].as_str().unwrap().to_owned();
    metadata["packages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|package| Package {
            name: text(package, "name"),
            dependencies: package["dependencies"]
                .as_array()
                .unwrap()
                .iter()
                .map(|dependency| {
                    let kind = match dependency["kind"].as_str() {
                        None => DependencyKind::Normal,
                        Some("build") => DependencyKind::Build,
                        Some(_) => DependencyKind::Dev,
                    };
                    // The name in the registry, whatever it is renamed to.
                    (text(dependency, "name"), kind)
                })
                .collect(),
        })
        .collect()
}

/// Every edge that is not allowed, and every crate that has no rule.
fn wrong_edges(packages: &[Package]) -> Vec<String> {
    let mut wrong = Vec::new();
    for package in packages.iter().filter(|package| !FREE.contains(&package.name.as_str())) {
        let Some((_, normal, in_tests)) = EDGES.iter().find(|(name, ..)| *name == package.name) else {
            wrong.push(format!("{} has no rule", package.name));
            continue;
        };
        for (to, kind) in &package.dependencies {
            let is_ours = to.starts_with("kaas-");
            let allowed = match (to.as_str(), kind) {
                ("kafka-protocol", DependencyKind::Dev) => ORACLE_USERS.contains(&package.name.as_str()),
                ("kafka-protocol", _) => false,
                (to, DependencyKind::Dev) if is_ours => normal.contains(&to) || in_tests.contains(&to),
                (to, _) if is_ours => normal.contains(&to),
                _ => true,
            };
            if !allowed {
                wrong.push(format!("{} -> {to} ({kind:?})", package.name));
            }
        }
    }
    wrong
}

/// Dependencies of every locked package, by name.
fn locked() -> BTreeMap<String, BTreeSet<String>> {
    let lock = std::fs::read_to_string(root().join("Cargo.lock")).unwrap();
    let mut packages: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut current = String::new();
    let mut within_dependencies = false;
    for line in lock.lines() {
        if let Some(name) = line.strip_prefix("name = \"") {
            current = name.trim_end_matches('"').to_owned();
            packages.entry(current.clone()).or_default();
        } else if line.starts_with("dependencies = [") {
            within_dependencies = true;
        } else if line == "]" {
            within_dependencies = false;
        } else if within_dependencies {
            let name = line.trim().trim_matches(|c| c == '"' || c == ',').split(' ').next().unwrap();
            packages.get_mut(&current).unwrap().insert(name.to_owned());
        }
    }
    packages
}

fn is_runtime(name: &str) -> bool {
    name == "tokio" || name.starts_with("tokio-") || name == "async-std" || name == "smol" || name == "mio"
}

/// The way from a crate to an async runtime, if there is one. Dev-dependencies of workspace crates do not count:
/// they come from the metadata; third parties' are not in the lock file.
fn way_to_a_runtime(
    from: &str,
    packages: &[Package],
    locked: &BTreeMap<String, BTreeSet<String>>,
) -> Option<Vec<String>> {
    let mut ways = vec![vec![from.to_owned()]];
    let mut seen = BTreeSet::new();
    while let Some(way) = ways.pop() {
        let at = way.last().unwrap().clone();
        if is_runtime(&at) {
            return Some(way);
        }
        if !seen.insert(at.clone()) {
            continue;
        }
        let next: Vec<String> = match packages.iter().find(|package| package.name == at) {
            Some(ours) => ours
                .dependencies
                .iter()
                .filter(|(_, kind)| *kind != DependencyKind::Dev)
                .map(|(name, _)| name.clone())
                .collect(),
            None => locked.get(&at).into_iter().flatten().cloned().collect(),
        };
        for name in next {
            ways.push(way.iter().cloned().chain([name]).collect());
        }
    }
    None
}

#[test]
fn crates_import_only_what_they_may() {
    let packages = packages();
    assert!(packages.len() >= 7, "{packages:?}");
    assert_eq!(wrong_edges(&packages), Vec::<String>::new());
}

#[test]
fn wrong_edges_are_found() {
    let wrong = |from: &str, to: &str, kind| {
        let package = Package { name: from.to_owned(), dependencies: vec![(to.to_owned(), kind)] };
        !wrong_edges(&[package]).is_empty()
    };
    use DependencyKind::{Build, Dev, Normal};
    for (from, to, kind) in [
        ("kaas-engine", "kaas-control", Normal),
        ("kaas-engine", "kaas-broker", Dev),
        ("kaas-engine", "kaas-fault-injection", Normal),
        ("kaas-control", "kaas-broker", Normal),
        ("kaas-control", "kaas-protocol", Dev),
        ("kaas-protocol", "kaas-engine", Build),
        ("kaas-operator", "kaas-broker", Normal),
        ("kaas-substrate", "kaas-engine", Dev),
        ("kaas-broker", "kafka-protocol", Dev),
        ("kaas-protocol", "kafka-protocol", Normal),
        ("kaas-new", "serde", Normal),
    ] {
        assert!(wrong(from, to, kind), "{from} -> {to} ({kind:?})");
    }
    assert!(!wrong("kaas-protocol", "kafka-protocol", Dev));
    assert!(!wrong("kaas-broker", "kaas-fault-injection", Dev));
    assert!(!wrong("kaas-benches", "kaas-broker", Normal));
}

#[test]
fn synchronous_crates_know_no_runtime() {
    let (packages, locked) = (packages(), locked());
    for name in SYNCHRONOUS {
        assert_eq!(way_to_a_runtime(name, &packages, &locked), None, "{name}");
    }
    // The search finds what there is to be found.
    assert!(way_to_a_runtime("kaas-broker", &packages, &locked).is_some());
    let through = Package {
        name: "kaas-engine".to_owned(),
        dependencies: vec![("other".to_owned(), DependencyKind::Normal)],
    };
    let other = BTreeMap::from([("other".to_owned(), BTreeSet::from(["tokio-util".to_owned()]))]);
    assert_eq!(way_to_a_runtime("kaas-engine", &[through], &other).unwrap().len(), 3);
}

/// Every Rust file of ours, relative to the root.
fn sources() -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut dirs = vec![root()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap_or_default();
            if path.is_dir() {
                if !name.starts_with('.') && !["target", "node_modules"].contains(&name) {
                    dirs.push(path);
                }
            } else if name.ends_with(".rs") {
                files.push(path.strip_prefix(root()).unwrap().to_owned());
            }
        }
    }
    files.sort();
    files
}

/// Tests, build scripts and measurements: they may use the file system, and their length is their own affair. The process
/// harness, the labs and the fuzz targets are part of tests too; they read what the system says of a process, and lay directories out.
fn is_beside_the_product(path: &Path) -> bool {
    path.starts_with("benches")
        || path.starts_with("fuzz")
        || path.starts_with("fault-injection/src/process")
        || path.starts_with("fault-injection/src/lab")
        || path.starts_with("fault-injection/lab")
        || path.file_name().is_some_and(|name| name == "build.rs" || name == "tests.rs")
        || path
            .components()
            .any(|part| ["tests", "benches", "build"].iter().any(|name| part.as_os_str() == *name))
}

fn offences(path: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let in_substrate = path.starts_with("substrate");
    let product = without_tests(text);
    if !in_substrate && Code::of(text).has_word("unsafe") {
        found.push("unsafe outside of the substrate".to_owned());
    }
    if !is_beside_the_product(path) {
        let lines = product.lines().count();
        if lines > LINES_MAX {
            found.push(format!("{lines} lines, more than {LINES_MAX}"));
        }
        if !in_substrate {
            for used in Code::of(&product).paths_below(FILE_SYSTEM) {
                found.push(format!("uses {used}"));
            }
        }
    }
    found
}

#[test]
fn only_the_substrate_touches_files_and_nothing_is_overlong_or_unsafe() {
    let sources = sources();
    assert!(sources.len() > 30, "{sources:?}");
    let mut report = Vec::new();
    for path in sources {
        let text = std::fs::read_to_string(root().join(&path)).unwrap();
        for offence in offences(&path, &text) {
            report.push(format!("{}: {offence}", path.display()));
        }
    }
    assert!(report.is_empty(), "\n{}", report.join("\n"));
}

#[test]
fn offences_are_found() {
    let engine = Path::new("engine/src/x.rs");
    let count = |path: &Path, text: &str| offences(path, text).len();
    for offending in [
        "use std::fs;",
        "use std::fs::File;",
        "use std::{io, fs::{self, File}};",
        "use ::std::{fs as files};",
        "use std::os::{fd::AsFd, unix::fs::FileExt};",
        "fn f() { std::fs::remove_file(\"x\"); }",
        "fn f() { rustix :: fs :: fsync(x); }",
        "use tokio::{net, fs};",
        "unsafe fn f() {}",
        "#[cfg(test)]\nmod tests { fn f() { unsafe { g() } } }",
        "#[cfg(test)]\nmod tests { }\nuse std::fs;",
    ] {
        assert!(count(engine, offending) > 0, "{offending}");
    }
    for fine in [
        "//! Never std::fs, and nothing unsafe.",
        "const WHY: &str = \"std::fs is unsafe\"; /* std::fs */",
        "const RAW: &str = r#\"unsafe \" std::fs\"#; const C: char = '\"'; fn f<'a>() {}",
        "use std::{fmt, io};\nuse std::os::fd::BorrowedFd;",
        "#[cfg(test)]\nmod tests {\n use std::fs;\n fn f() { let x = \"}\"; fs::x() }\n}",
        "use crate::fs::offset;",
        "fn f() { unsafe_name(); }",
    ] {
        assert_eq!(count(engine, fine), 0, "{fine}");
    }
    assert_eq!(count(Path::new("substrate/src/x.rs"), "use std::fs; unsafe fn f() {}"), 0);
    assert_eq!(count(Path::new("engine/tests/x.rs"), "use std::fs;"), 0);
    assert_eq!(count(Path::new("engine/tests/x.rs"), "unsafe fn f() {}"), 1);
    assert_eq!(count(engine, &"fn f() {}\n".repeat(LINES_MAX)), 0);
    assert_eq!(count(engine, &"fn f() {}\n".repeat(LINES_MAX + 1)), 1);
    let with_tests =
        format!("fn f() {{}}\n#[cfg(test)]\nmod tests {{\n{}}}\n", "fn t() {}\n".repeat(LINES_MAX));
    assert_eq!(count(engine, &with_tests), 0);
}
