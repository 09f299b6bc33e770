//! Looking at one thing over and over while another process changes it.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::Agent;
use super::files::read;
use crate::qualify::content::Seen;
use crate::qualify::protocol::{Failure, FailureClass, Opening, Spin, Spun};

/// Between two looks.
const PAUSE: Duration = Duration::from_micros(200);

impl Agent {
    pub fn spin(&self, spin: &Spin, stop: &AtomicBool) -> Result<Spun, Failure> {
        let mut spun = Spun::default();
        let mut known = HashSet::new();
        // Whatever happened before the stop is looked at once more.
        let mut last = false;
        while !last {
            last = stop.load(Ordering::Relaxed);
            spun.looks += 1;
            match spin {
                Spin::File { path, length } => {
                    spun.note(self.look_into(path, *length), *length);
                }
                Spin::Record { file, offset, length } => {
                    let file = self.file(*file)?;
                    spun.note(read(&file, *offset, *length), *length);
                }
                Spin::Births { dir, children, length } => {
                    self.look_at_births(dir, *children, *length, &mut known, &mut spun)?;
                }
            }
            thread::sleep(PAUSE);
        }
        Ok(spun)
    }

    /// Opens, asks for the length as kaas does with every open, and reads. Some clients read nothing of a new file before
    /// they were asked (see the note `unasked_read`).
    fn look_into(&self, path: &str, length: u64) -> Result<Seen, Failure> {
        let file = self.open(path, Opening::Read, false)?;
        file.length()?;
        read(&file, 0, length)
    }

    /// Looks into every directory that is new in `dir`: it must hold all of its files, whole.
    fn look_at_births(
        &self,
        dir: &str,
        children: u32,
        length: u64,
        known: &mut HashSet<String>,
        spun: &mut Spun,
    ) -> Result<(), Failure> {
        for name in self.dir()?.list(&self.inside(dir)?)? {
            if name.starts_with('~') || !known.insert(name.clone()) {
                continue;
            }
            spun.newest += 1;
            for child in 0..children {
                let path = format!("{dir}/{name}/{child}");
                match self.look_into(&path, length) {
                    Ok(seen) if seen.is(1, length) => {}
                    Ok(seen) => spun.tear(seen),
                    Err(failure) if failure.class == FailureClass::NotFound => spun.absent += 1,
                    Err(failure) => spun.fail(failure),
                }
            }
        }
        Ok(())
    }
}

impl Spun {
    fn note(&mut self, look: Result<Seen, Failure>, length: u64) {
        match look {
            Ok(seen) if seen.foreign || seen.bytes != length || seen.oldest != seen.newest => self.tear(seen),
            Ok(seen) => {
                if seen.newest < self.newest {
                    self.backwards += 1;
                }
                self.newest = self.newest.max(seen.newest);
            }
            Err(failure) => match failure.class {
                FailureClass::NotFound => self.absent += 1,
                FailureClass::Stale => self.stale += 1,
                _ => self.fail(failure),
            },
        }
    }

    fn tear(&mut self, seen: Seen) {
        self.torn += 1;
        self.first_torn.get_or_insert(seen);
    }

    fn fail(&mut self, failure: Failure) {
        self.failed += 1;
        self.first_failure.get_or_insert(failure.message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_told_apart() {
        let seen = |version, bytes| Seen { bytes, oldest: version, newest: version, foreign: false };
        let failure = |class| Failure { class, message: "x".into() };
        let mut spun = Spun::default();
        spun.note(Ok(seen(2, 64)), 64);
        spun.note(Ok(seen(1, 64)), 64);
        spun.note(Ok(seen(3, 60)), 64);
        spun.note(Ok(Seen { oldest: 2, ..seen(3, 64) }), 64);
        spun.note(Ok(Seen { foreign: true, ..seen(3, 64) }), 64);
        spun.note(Err(failure(FailureClass::NotFound)), 64);
        spun.note(Err(failure(FailureClass::Stale)), 64);
        spun.note(Err(failure(FailureClass::Other)), 64);
        let expected = Spun {
            looks: 0,
            absent: 1,
            torn: 3,
            first_torn: Some(seen(3, 60)),
            backwards: 1,
            stale: 1,
            failed: 1,
            first_failure: Some("x".into()),
            newest: 2,
        };
        assert_eq!(spun, expected);
    }
}
