//! How wide the terminal is.

use terminal_size::{Width, terminal_size_of};

/// How wide lines are where there is no terminal: in a file, a pipe, a mail.
const WIDTH: usize = 100;

/// The narrowest that is taken for one.
const WIDTH_MIN: usize = 40;

/// Columns of standard output.
pub fn width() -> usize {
    columns(terminal_size_of(std::io::stdout()).map(|(width, _)| width))
}

/// Columns of standard error.
pub fn error_width() -> usize {
    columns(terminal_size_of(std::io::stderr()).map(|(width, _)| width))
}

/// A terminal that does not know how wide it is says 0.
fn columns(found: Option<Width>) -> usize {
    found.map(|Width(columns)| usize::from(columns)).filter(|columns| *columns >= WIDTH_MIN).unwrap_or(WIDTH)
}
