//! Java's properties files: `meta.properties`, and the broker's `server.properties`. Pure code.
//!
//! A line is a name and a value, with `=`, `:` or white space between them; `#` or `!` begin a comment; a backslash at the end
//! goes on with the next line, and elsewhere takes a character as it is, or is one of `\t`, `\n`, `\r`, `\f`, `\u1234`. The last
//! line of a name counts. Bytes are characters of ISO 8859-1.

use std::collections::BTreeMap;

/// Names and values.
pub(super) type Properties = BTreeMap<String, String>;

/// Reads a properties file. Whatever the bytes are, they are one: Java refuses only a `\u` without four hexadecimal digits, which
/// is taken as it stands here.
pub(super) fn parse(bytes: &[u8]) -> Properties {
    let text: String = bytes.iter().map(|byte| char::from(*byte)).collect();
    let text = text.replace("\r\n", "\n");
    let mut properties = Properties::new();
    let mut lines = text.split(['\n', '\r']).map(|line| line.trim_start_matches(is_space));
    while let Some(line) = lines.next() {
        if line.is_empty() || line.starts_with(['#', '!']) {
            continue;
        }
        let mut whole = line.to_owned();
        while ends_with_escape(&whole) {
            whole.pop();
            let Some(next) = lines.next() else { break };
            whole.push_str(next);
        }
        let (name, value) = split(&whole);
        properties.insert(unescaped(name), unescaped(value));
    }
    properties
}

fn is_space(char: char) -> bool {
    [' ', '\t', '\u{c}'].contains(&char)
}

/// Whether the last backslash is not itself escaped.
fn ends_with_escape(line: &str) -> bool {
    line.chars().rev().take_while(|char| *char == '\\').count() % 2 == 1
}

/// At the first separator that is not escaped.
fn split(line: &str) -> (&str, &str) {
    let mut is_escaped = false;
    let at = line.find(|char: char| {
        let ends = !is_escaped && (is_space(char) || char == '=' || char == ':');
        is_escaped = !is_escaped && char == '\\';
        ends
    });
    let (name, rest) = line.split_at(at.unwrap_or(line.len()));
    let rest = rest.trim_start_matches(is_space);
    let value = rest.strip_prefix(['=', ':']).unwrap_or(rest);
    (name, value.trim_start_matches(is_space))
}

fn unescaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let mut chars = rest[at + 1..].chars();
        match chars.next() {
            Some('t') => out.push('\t'),
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('f') => out.push('\u{c}'),
            Some('u') => {
                let code = chars.as_str().get(..4).and_then(|code| u32::from_str_radix(code, 16).ok());
                match code.and_then(char::from_u32) {
                    Some(char) => {
                        out.push(char);
                        chars = chars.as_str()[4..].chars();
                    }
                    None => out.push('u'),
                }
            }
            Some(char) => out.push(char),
            None => {}
        }
        rest = chars.as_str();
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_java_reads_them() {
        let text = b"# a comment\n!another = one\n\n cluster.id = abc \nlog.roll.ms=1\nlog.roll.ms=2\n\
                     colon:x\nspace  y z\nempty=\nlone\nlong=a,\\\n   b\\\r\n  c\\\\\na\\=b\\:\\ c=\\u0041\\t\\q\\u00\nl\xfcck=\xdf\nend=\\";
        let expected = [
            ("cluster.id", "abc "),
            ("log.roll.ms", "2"),
            ("colon", "x"),
            ("space", "y z"),
            ("empty", ""),
            ("lone", ""),
            ("a=b: c", "A\tqu00"),
            ("l\u{fc}ck", "\u{df}"),
            ("end", ""),
        ];
        let mut found = parse(text);
        assert_eq!(found.remove("long").unwrap(), "a,bc\\");
        let expected: Properties =
            expected.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        assert_eq!(found, expected);
    }
}
