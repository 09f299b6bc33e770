//! `kaas-engine import` as a command, on real directories.
#![allow(dead_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use kaas_substrate::{EntryKind, Substrate, read_small};
use tempfile::TempDir;

use crate::kafka::Kafka;

/// A log directory on the disk, and room beside it.
pub struct Place {
    pub temporary: TempDir,
}

impl Place {
    pub fn new() -> Self {
        Self { temporary: tempfile::tempdir().unwrap() }
    }

    pub fn with(kafka: &Kafka) -> Self {
        let place = Self::new();
        place.write("kafka", kafka);
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.temporary.path().join(name)
    }

    pub fn write(&self, name: &str, kafka: &Kafka) {
        fs::create_dir(self.path(name)).unwrap();
        let mut dirs = vec![PathBuf::new()];
        while let Some(dir) = dirs.pop() {
            for entry in kafka.volume.list(&dir).unwrap() {
                let path = dir.join(entry.name);
                let to = self.path(name).join(&path);
                if entry.kind == EntryKind::Dir {
                    fs::create_dir(to).unwrap();
                    dirs.push(path);
                } else {
                    fs::write(to, read_small(&kafka.volume, &path, 1 << 20).unwrap()).unwrap();
                }
            }
        }
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kaas-engine"));
        command.current_dir(self.temporary.path()).arg("import").args(args).stdin(Stdio::null());
        command
    }

    pub fn import(&self, args: &[&str]) -> Output {
        let mut child = self.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        assert!(ends(&mut child), "{args:?} does not end");
        child.wait_with_output().unwrap()
    }

    /// What a refusal says, unwrapped, of a command that must not have written anything.
    pub fn refused(&self, code: i32, args: &[&str]) -> String {
        self.refused_lines(code, args).replace("\n  ", " ")
    }

    pub fn refused_lines(&self, code: i32, args: &[&str]) -> String {
        let before = names(self.temporary.path());
        let output = self.import(args);
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        assert!(said.contains("hint: "), "{said}");
        assert_eq!(names(self.temporary.path()), before, "{args:?} has made something");
        said
    }
}

/// Nobody waits for a pipe that nobody writes to: that would be for ever.
fn ends(child: &mut Child) -> bool {
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline {
        if child.try_wait().unwrap().is_some() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    false
}

pub fn names(dir: &Path) -> Vec<PathBuf> {
    let mut found: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    for path in found.clone().iter().filter(|path| path.is_dir() && !path.is_symlink()) {
        found.extend(names(path));
    }
    found.sort();
    found
}

pub fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Puts a named pipe in a file's place.
pub fn make_pipe(path: &Path) {
    let _ = fs::remove_file(path);
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}
