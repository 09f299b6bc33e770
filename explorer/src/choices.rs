//! What decides a run: numbers that follow from a seed, each of which can be taken out.
//!
//! A run asks for every decision in a [`Stream`]; the answer depends on the seed, the stream and how many were asked for
//! in it before, and on nothing else. So a decision that is taken out (it becomes 0, which every caller takes to be
//! the plainest: go on, no fault, do nothing) leaves all others as they were, and a failure is shrunk by taking out as
//! many as possible.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Version of what the numbers mean. A line of another version decides another run.
const VERSION: u32 = 1;

/// A sequence of decisions of one kind, by one actor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stream {
    kind: char,
    actor: u32,
}

impl Stream {
    /// Settings of the run.
    pub const SETUP: Self = Self { kind: 'u', actor: 0 };
    /// Who is next.
    pub const SCHEDULE: Self = Self { kind: 's', actor: 0 };
    /// What happens to the cluster.
    pub const EVENTS: Self = Self { kind: 'e', actor: 0 };
    /// What the volume does, and what a crash leaves of it.
    pub const STORAGE: Self = Self { kind: 'v', actor: 0 };

    /// What fails for a process.
    pub fn faults(process: u32) -> Self {
        Self { kind: 'f', actor: process }
    }

    /// What a leader's clients ask for.
    pub fn script(leader: u32) -> Self {
        Self { kind: 'o', actor: leader }
    }
}

/// The decisions of a stream, by their numbers, in order.
pub type Kept = BTreeMap<Stream, Vec<u64>>;

/// Everything that decides a run, as one line: `v1:<scenario>:<seed>`, and if decisions were taken out, those that are
/// left: `:<stream>=<number>.<number>...` for each stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    pub scenario: String,
    pub seed: u64,
    /// The decisions that count; `None`: all.
    pub kept: Option<Kept>,
}

/// Not a line that can be replayed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    #[error(
        "a line looks like v{VERSION}:<scenario>:<seed>, as printed with a failure; this one does not: {part:?}"
    )]
    Malformed { part: String },
    #[error(
        "the line is of version {found:?}; this build replays version {VERSION}: check out the commit that printed it"
    )]
    Version { found: String },
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{VERSION}:{}:{}", self.scenario, self.seed)?;
        for (stream, numbers) in self.kept.iter().flatten() {
            write!(f, ":{}{}=", stream.kind, stream.actor)?;
            for (at, number) in numbers.iter().enumerate() {
                write!(f, "{}{number}", if at > 0 { "." } else { "" })?;
            }
        }
        if self.kept.as_ref().is_some_and(BTreeMap::is_empty) {
            write!(f, ":-")?;
        }
        Ok(())
    }
}

impl FromStr for Line {
    type Err = LineError;

    fn from_str(text: &str) -> Result<Self, LineError> {
        let malformed = |part: &str| LineError::Malformed { part: part.to_owned() };
        let mut parts = text.trim().split(':');
        let version = parts.next().unwrap_or_default();
        if version.strip_prefix('v').is_none_or(|digits| digits.parse::<u32>().is_err()) {
            return Err(malformed(text));
        }
        if version != format!("v{VERSION}") {
            return Err(LineError::Version { found: version.to_owned() });
        }
        let scenario =
            parts.next().filter(|name| !name.is_empty()).ok_or_else(|| malformed(text))?.to_owned();
        let seed = parts.next().and_then(|seed| seed.parse().ok()).ok_or_else(|| malformed(text))?;
        let mut kept = None;
        for part in parts {
            let kept = kept.get_or_insert_with(Kept::new);
            if part == "-" {
                continue;
            }
            let (stream, numbers) = part.split_once('=').ok_or_else(|| malformed(part))?;
            let mut letters = stream.chars();
            let kind = letters.next().filter(char::is_ascii_lowercase).ok_or_else(|| malformed(part))?;
            let actor = letters.as_str().parse().map_err(|_| malformed(part))?;
            let numbers: Result<Vec<u64>, _> = numbers.split('.').map(str::parse).collect();
            kept.insert(Stream { kind, actor }, numbers.map_err(|_| malformed(part))?);
        }
        Ok(Self { scenario, seed, kept })
    }
}

/// The decisions of a run under way.
#[derive(Debug)]
pub struct Choices {
    seed: u64,
    kept: Option<Kept>,
    asked: BTreeMap<Stream, u64>,
    taken: Kept,
}

/// Scrambles the bits of a number (SplitMix64).
fn mix(mut value: u64) -> u64 {
    value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

impl Choices {
    /// Those of `line`.
    pub fn new(line: &Line) -> Self {
        Self { seed: line.seed, kept: line.kept.clone(), asked: BTreeMap::new(), taken: Kept::new() }
    }

    /// The next number of a stream, and its place there; `None` if it was taken out.
    fn next(&mut self, stream: Stream) -> (u64, Option<u64>) {
        let asked = self.asked.entry(stream).or_default();
        let number = *asked;
        *asked += 1;
        let counts = self.kept.as_ref().is_none_or(|kept| {
            kept.get(&stream).is_some_and(|numbers| numbers.binary_search(&number).is_ok())
        });
        let key = mix(u64::from(u32::from(stream.kind)) << 32 | u64::from(stream.actor));
        (number, counts.then(|| mix(mix(self.seed ^ key).wrapping_add(mix(number)))))
    }

    /// A number below `bound`; 0 is the plainest.
    pub fn below(&mut self, stream: Stream, bound: u64) -> u64 {
        let (number, drawn) = self.next(stream);
        let chosen = drawn.map_or(0, |drawn| drawn % bound.max(1));
        if chosen != 0 {
            self.taken.entry(stream).or_default().push(number);
        }
        chosen
    }

    /// True once in `count` times on average; never for 0.
    pub fn one_in(&mut self, stream: Stream, count: u64) -> bool {
        let (number, drawn) = self.next(stream);
        let happens = count > 0 && drawn.is_some_and(|drawn| drawn % count == 0);
        if happens {
            self.taken.entry(stream).or_default().push(number);
        }
        happens
    }

    /// One of `options`; the first is the plainest.
    pub fn pick<T: Copy>(&mut self, stream: Stream, options: &[T]) -> Option<T> {
        let chosen = self.below(stream, options.len() as u64);
        usize::try_from(chosen).ok().and_then(|at| options.get(at)).copied()
    }

    /// Every decision so far that was not the plainest.
    pub fn taken(&self) -> &Kept {
        &self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Line {
        text.parse().unwrap()
    }

    #[test]
    fn a_line_survives_a_round_trip() {
        for text in ["v1:takeovers:17", "v1:x:0:o12=3:s0=1.5.900", "v1:x:18446744073709551615:-"] {
            assert_eq!(line(text).to_string(), text);
        }
    }

    #[test]
    fn other_text_is_refused_with_a_reason() {
        for text in
            ["", "takeovers:1", "v1:takeovers", "v1::1", "v1:x:y", "v1:x:1:s0", "v1:x:1:s0=a", "v1:x:1:00=1"]
        {
            assert!(matches!(text.parse::<Line>(), Err(LineError::Malformed { .. })), "{text}");
        }
        assert!(matches!("v9:x:1".parse::<Line>(), Err(LineError::Version { .. })));
    }

    #[test]
    fn decisions_that_are_taken_out_leave_the_others_as_they_were() {
        let draw = |line: &Line| {
            let mut choices = Choices::new(line);
            let drawn: Vec<_> = (0..50).map(|_| choices.below(Stream::script(3), 10)).collect();
            (drawn, choices.taken().clone())
        };
        let (all, taken) = draw(&line("v1:x:7"));
        assert!(taken[&Stream::script(3)].len() > 30);
        let kept: Vec<u64> =
            taken[&Stream::script(3)].iter().copied().filter(|number| number % 3 == 0).collect();
        let (some, _) = draw(&Line { kept: Some([(Stream::script(3), kept)].into()), ..line("v1:x:7") });
        for (number, (all, some)) in all.iter().zip(&some).enumerate() {
            assert_eq!(*some, if number % 3 == 0 { *all } else { 0 });
        }
    }
}
