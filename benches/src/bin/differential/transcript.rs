//! Lines that two answers do not share.

use std::fmt;

/// One answer: which request it belongs to, and its fields in lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub label: String,
    pub text: String,
}

/// A line that only one of the brokers has, and the structures around it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// `-` for kaas, `+` for Kafka.
    pub sign: char,
    /// What stands above it with less indentation, outermost first.
    pub within: String,
    pub text: String,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = if self.sign == '-' { "kaas " } else { "Kafka" };
        write!(f, "    {side} {} {}", self.within, self.text)
    }
}

/// The lines of `ours` and `theirs` that are not in the longest common subsequence.
pub fn difference(ours: &str, theirs: &str) -> Vec<Line> {
    if ours == theirs {
        return Vec::new();
    }
    let (a, b) = (lines(ours), lines(theirs));
    let width = b.len() + 1;
    let mut longest = vec![0_u32; (a.len() + 1) * width];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            longest[i * width + j] = if a[i] == b[j] {
                longest[(i + 1) * width + j + 1] + 1
            } else {
                longest[(i + 1) * width + j].max(longest[i * width + j + 1])
            };
        }
    }
    let (mut i, mut j, mut out) = (0, 0, Vec::new());
    while i < a.len() || j < b.len() {
        if i < a.len() && j < b.len() && a[i] == b[j] {
            (i, j) = (i + 1, j + 1);
        } else if j == b.len() || (i < a.len() && longest[(i + 1) * width + j] >= longest[i * width + j + 1])
        {
            out.push(Line { sign: '-', within: a[i].0.clone(), text: a[i].1.clone() });
            i += 1;
        } else {
            out.push(Line { sign: '+', within: b[j].0.clone(), text: b[j].1.clone() });
            j += 1;
        }
    }
    // A structure that only one has shows by its fields.
    out.retain(|line: &Line| !line.text.ends_with('{'));
    out
}

/// Every line that says something, with the names of what it lies in.
fn lines(text: &str) -> Vec<(String, String)> {
    let mut above: Vec<(usize, String)> = Vec::new();
    let mut out = Vec::new();
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        let content = line.trim().to_owned();
        above.retain(|(level, _)| *level < indent);
        if content.chars().all(|symbol| "[](){},".contains(symbol)) {
            continue;
        }
        // An identifying field names its structure.
        let within: Vec<&str> = above.iter().map(|(_, name)| name.as_str()).collect();
        out.push((within.join("/"), content.clone()));
        let opens = content.ends_with(['{', '[', '(']);
        if opens {
            let name = content.trim_end_matches([' ', '{', '[', '(']).split(':').next().unwrap_or_default();
            above.push((indent, name.to_owned()));
        } else if let Some(value) =
            content.strip_prefix("name: ").or_else(|| content.strip_prefix("partition_index: "))
        {
            let value = value.trim_end_matches(',').trim_matches('"').to_owned();
            if let Some((_, holder)) = above.last_mut() {
                *holder = format!("{}({value})", holder.split('(').next().unwrap_or_default());
            }
        }
    }
    out
}

/// Differences of one case; those that several versions share are printed once.
#[derive(Debug, Default)]
pub struct Found {
    list: Vec<(String, Vec<Line>, Vec<String>)>,
}

impl Found {
    pub fn add(&mut self, label: &str, lines: Vec<Line>) {
        if lines.is_empty() {
            return;
        }
        let mut words: Vec<&str> = label.split(' ').collect();
        let is_version =
            |word: &&str| word.strip_prefix('v').is_some_and(|digits| digits.parse::<u16>().is_ok());
        let version = match words.iter().position(is_version) {
            Some(at) => words.remove(at),
            None => "",
        };
        let label = words.join(" ");
        match self.list.iter_mut().find(|(known, same, _)| *known == label && *same == lines) {
            Some((_, _, versions)) => versions.push(version.to_owned()),
            None => self.list.push((label, lines, vec![version.to_owned()])),
        }
    }

    pub fn print(&self, case: &str) {
        for (label, lines, versions) in &self.list {
            println!("==== {case}: {label} [{}]", versions.join(" "));
            for line in lines.iter().take(60) {
                println!("{line}");
            }
            if lines.len() > 60 {
                println!("    ... {} more lines", lines.len() - 60);
            }
        }
    }
}
