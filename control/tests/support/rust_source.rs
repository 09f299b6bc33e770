//! Just enough of Rust's grammar to scan sources: comments and literals blanked out, use trees spelled out.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

/// A source without comments and literals, cut into words and single characters. `::` is one token.
pub struct Code {
    tokens: Vec<String>,
}

impl Code {
    pub fn of(text: &str) -> Self {
        let blanked = blank(text);
        let mut tokens: Vec<String> = Vec::new();
        let mut chars = blanked.chars().peekable();
        while let Some(c) = chars.next() {
            if c.is_alphanumeric() || c == '_' {
                let mut word = c.to_string();
                while let Some(more) = chars.next_if(|c| c.is_alphanumeric() || *c == '_') {
                    word.push(more);
                }
                tokens.push(word);
            } else if c == ':' && chars.next_if_eq(&':').is_some() {
                tokens.push("::".to_owned());
            } else if !c.is_whitespace() {
                tokens.push(c.to_string());
            }
        }
        Self { tokens }
    }

    pub fn has_word(&self, word: &str) -> bool {
        self.tokens.iter().any(|token| token == word)
    }

    /// Every path, imported or spelled out, that lies at or below one of `roots`.
    pub fn paths_below(&self, roots: &[&str]) -> Vec<String> {
        let mut found = Vec::new();
        let mut at = 0;
        while at < self.tokens.len() {
            let begins = is_word(&self.tokens[at])
                && (at == 0 || self.tokens[at - 1] != "::" || at == 1 || !is_word(&self.tokens[at - 2]));
            if begins {
                let mut paths = Vec::new();
                at = self.tree(at, "", &mut paths);
                found.extend(paths.into_iter().filter(|path| {
                    roots.iter().any(|root| path == root || path.starts_with(&format!("{root}::")))
                }));
            } else {
                at += 1;
            }
        }
        found
    }

    /// Reads a path or use tree from `at` on; where it ends. Its paths are added to `paths`.
    fn tree(&self, mut at: usize, prefix: &str, paths: &mut Vec<String>) -> usize {
        let token = |at: usize| self.tokens.get(at).map_or("", String::as_str);
        let mut path = prefix.to_owned();
        loop {
            if token(at) == "{" {
                at += 1;
                while !matches!(token(at), "}" | "") {
                    at = self.tree(at, &path, paths);
                    while !matches!(token(at), "," | "}" | "") {
                        at += 1; // `as name`
                    }
                    if token(at) == "," {
                        at += 1;
                    }
                }
                return at + 1;
            }
            if token(at) == "*" || token(at) == "self" {
                at += 1;
            } else if is_word(token(at)) {
                path = if path.is_empty() { token(at).to_owned() } else { format!("{path}::{}", token(at)) };
                at += 1;
            } else {
                paths.push(path);
                return at.max(1);
            }
            if token(at) != "::" {
                paths.push(path);
                return at;
            }
            at += 1;
            // A turbofish ends a path.
            if token(at) == "<" {
                paths.push(path);
                return at;
            }
        }
    }
}

/// Keywords that may stand before a path that begins with `::`.
const KEYWORDS: &[&str] = &[
    "as", "dyn", "else", "for", "if", "impl", "in", "let", "match", "mut", "pub", "return", "use", "where",
    "while",
];

/// A word that can be part of a path.
fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_') && !KEYWORDS.contains(&token)
}

/// The text with comments and the insides of literals replaced by blanks; lines stay lines.
fn blank(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let keep_lines = |out: &mut String, from: usize, to: usize| {
        for &c in &chars[from..to.min(chars.len())] {
            out.push(if c == '\n' { '\n' } else { ' ' });
        }
    };
    let mut i = 0;
    while i < chars.len() {
        let end = match (at(i), at(i + 1)) {
            ('/', '/') => (i..chars.len()).find(|&j| at(j) == '\n').unwrap_or(chars.len()),
            ('/', '*') => block_comment_end(&chars, i),
            ('"', _) => string_end(&chars, i + 1),
            ('r', '"' | '#') if i == 0 || !is_name(at(i - 1)) || at(i - 1) == 'b' => {
                raw_string_end(&chars, i + 1).unwrap_or(i)
            }
            // A character, not a lifetime.
            ('\'', '\\') => (i + 3..chars.len()).find(|&j| at(j) == '\'').map_or(chars.len(), |j| j + 1),
            ('\'', _) if at(i + 2) == '\'' => i + 3,
            _ => i,
        };
        if end == i {
            out.push(at(i));
            i += 1;
        } else {
            keep_lines(&mut out, i, end);
            i = end;
        }
    }
    out
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn block_comment_end(chars: &[char], start: usize) -> usize {
    let mut depth = 0;
    let mut i = start;
    while i + 1 < chars.len() {
        match (chars[i], chars[i + 1]) {
            ('/', '*') => {
                depth += 1;
                i += 2;
            }
            ('*', '/') => {
                depth -= 1;
                i += 2;
                if depth == 0 {
                    return i;
                }
            }
            _ => i += 1,
        }
    }
    chars.len()
}

fn string_end(chars: &[char], mut i: usize) -> usize {
    while i < chars.len() {
        match chars[i] {
            '\\' => i += 2,
            '"' => return i + 1,
            _ => i += 1,
        }
    }
    chars.len()
}

fn raw_string_end(chars: &[char], hashes_from: usize) -> Option<usize> {
    let mut i = hashes_from;
    while chars.get(i) == Some(&'#') {
        i += 1;
    }
    let hashes = i - hashes_from;
    if chars.get(i) != Some(&'"') {
        return None; // r#name
    }
    i += 1;
    while i < chars.len() {
        if chars[i] == '"' && (1..=hashes).all(|n| chars.get(i + n) == Some(&'#')) {
            return Some(i + 1 + hashes);
        }
        i += 1;
    }
    Some(chars.len())
}

/// The text without what follows `#[cfg(test)]`: one item, up to its closing brace or semicolon.
pub fn without_tests(text: &str) -> String {
    let blanked: Vec<char> = blank(text).chars().collect();
    let chars: Vec<char> = text.chars().collect();
    let marker: Vec<char> = "#[cfg(test)]".chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut i = 0;
    while i < chars.len() {
        if blanked[i..].starts_with(&marker) {
            i = item_end(&blanked, i + marker.len());
        } else {
            out.push(chars[i]);
            i += 1;
        }
    }
    out
}

fn item_end(blanked: &[char], start: usize) -> usize {
    let mut depth = 0_usize;
    for (i, c) in blanked.iter().enumerate().skip(start) {
        match c {
            '{' | '(' | '[' => depth += 1,
            '}' | ')' | ']' => {
                depth = depth.saturating_sub(1);
                if depth == 0 && *c == '}' {
                    return i + 1;
                }
            }
            ';' if depth == 0 => return i + 1,
            _ => {}
        }
    }
    blanked.len()
}
