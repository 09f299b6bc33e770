//! Text for people in lines of a width.

/// How wide lines are where nothing says it.
pub(crate) const WIDTH: usize = 100;

/// What a line has at least, however far it is indented.
const ROOM_MIN: usize = 30;

/// Appends `lead` and then `text`, in lines of at most `width` characters; those behind the first are indented by `indent`
/// characters. Words are not broken: one that is longer, such as a path, has a line of its own. Ends with the line's end.
pub(crate) fn fold(out: &mut String, lead: &str, indent: usize, text: &str, width: usize) {
    let width = width.max(indent + ROOM_MIN);
    out.push_str(lead);
    let mut column = lead.chars().count();
    let mut begun = false;
    let mut words = text.trim_end().split([' ', '\n']).peekable();
    while let Some(word) = words.next() {
        let length = word.chars().count();
        let unit =
            words.peek().filter(|next| word.ends_with(|last: char| last.is_ascii_digit()) && is_unit(next));
        let needed = length + unit.map_or(0, |unit| 1 + unit.chars().count());
        if begun && column + 1 + needed > width {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent));
            column = indent;
        } else if begun {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += length;
        begun = true;
    }
    out.push('\n');
}

/// Whether a number that stands in front of it would make no sense without it.
fn is_unit(word: &str) -> bool {
    matches!(word.trim_end_matches(['.', ',', ';', ':', ')']), "s" | "kB" | "MB" | "MB/s" | "byte" | "bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folded(lead: &str, indent: usize, text: &str, width: usize) -> String {
        let mut out = String::new();
        fold(&mut out, lead, indent, text, width);
        out
    }

    #[test]
    fn lines_are_as_wide_as_they_may_be() {
        let text = "one two three four five six seven eight nine ten eleven twelve thirteen";
        assert_eq!(folded("", 0, text, 80), format!("{text}\n"));
        assert_eq!(
            folded("  - ", 4, text, 40),
            "  - one two three four five six seven\n    eight nine ten eleven twelve\n    thirteen\n"
        );
        assert_eq!(folded("  means: ", 9, " ", 40), "  means: \n");
    }

    #[test]
    fn a_number_stays_with_its_unit() {
        let text = "one two three four five six seven in 0.5 s, with it";
        assert_eq!(folded("", 0, text, 41), "one two three four five six seven in\n0.5 s, with it\n");
        assert_eq!(folded("", 0, text, 43), "one two three four five six seven in 0.5 s,\nwith it\n");
    }

    #[test]
    fn a_word_is_not_broken_and_every_one_is_there() {
        let long = "/a/path/that/is/longer/than/any/line/that/there/is";
        assert_eq!(
            folded("  ", 2, &format!("see {long} for it"), 30),
            format!("  see\n  {long}\n  for it\n")
        );
        let text = "a  b\nc";
        assert_eq!(folded("", 0, text, 40), "a  b c\n");
    }
}
