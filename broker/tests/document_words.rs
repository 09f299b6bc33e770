//! The words of `docs/` that the code or the tree can contradict: links, and lines of the log. The tables are in `documents.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::path::{Path, PathBuf};

fn document(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name)
}

/// Every file of Rust below `dir`, one after the other.
fn sources(dir: &Path, text: &mut String) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&std::fs::read_to_string(&path).unwrap());
        }
    }
}

/// Each line of the log that the document explains is one that the code can write.
#[test]
fn log_lines() {
    let mut code = String::new();
    for of_crate in ["broker", "engine", "control"] {
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(of_crate).join("src"), &mut code);
    }
    let text = std::fs::read_to_string(document("operating/README.md")).unwrap();
    let rows = text.split_once("<!-- log lines -->\n").unwrap().1.split_once("\n\n").unwrap().0;
    let mut lines = 0;
    for row in rows.lines().skip(2) {
        let cell = row.trim_start_matches("| ").split(" | ").next().unwrap();
        for line in cell.split('`').skip(1).step_by(2) {
            // What follows are fields, or numbers.
            let words = line.split(" ...").next().unwrap().split(": epoch ").next().unwrap();
            let end = words.find('=').map_or(words.len(), |at| words[..at].rfind(' ').unwrap_or(0));
            let words = &words[..end];
            let words = if words.is_empty() { line.split('=').next().unwrap() } else { words };
            assert!(
                code.contains(&words.replace('"', "\\\"")),
                "docs/operating/README.md: nothing logs '{words}'"
            );
            lines += 1;
        }
    }
    assert!(lines > 30, "{lines}");
}

/// The anchor that a heading gets.
fn anchor(heading: &str) -> String {
    let heading = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = heading.chars().filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_'));
    kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}

/// Links from one document to another lead somewhere.
#[test]
fn links() {
    let root = document("..");
    let mut documents = Vec::new();
    for dir in [root.clone(), root.join("docs"), root.join("docs/formats"), root.join("docs/operating")] {
        let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        documents.extend(entries.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    }
    let mut links = 0;
    for path in &documents {
        let text = std::fs::read_to_string(path).unwrap();
        for piece in text.split("](").skip(1) {
            let target = piece.split(')').next().unwrap();
            if target.contains("://") {
                continue;
            }
            links += 1;
            let (file, wanted) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            assert!(file.exists(), "{}: {target} does not exist", path.display());
            if !wanted.is_empty() {
                let there = std::fs::read_to_string(&file).unwrap();
                let found =
                    there.lines().filter(|line| line.starts_with('#')).any(|line| anchor(line) == wanted);
                assert!(found, "{}: {target} is no heading there", path.display());
            }
        }
    }
    assert!(links > 30, "{links}");
}
