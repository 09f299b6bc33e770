//! The command `kaas-engine`: looks after data directories without a broker.
//!
//! Exit codes: 0 all is well, 1 something was found, 2 it could not run; `qualify` has 10 and 11 besides. 130 and 143 after an
//! interrupt and a request to end.

mod bench;
mod import;
mod interrupt;
mod places;
mod qualify;
mod shown;
mod substrate_kind;
mod terminal;
mod units;
mod verify;

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use kaas_engine::dump::{DumpError, DumpOptions, dump};
use kaas_substrate::recognise::open_to_read;
use kaas_substrate::{EntryKind, ErrorClass, Mounted, harmless};
use serde::Serialize;

const FOUND: u8 = 1;
const COULD_NOT_RUN: u8 = 2;

/// Looks after the data directories of kaas, without a broker.
#[derive(Debug, Parser)]
#[command(name = "kaas-engine", version, max_term_width = 100)]
#[command(
    after_help = "Exit codes: 0 all is well, 1 something was found, 2 it could not run, 130 after Ctrl-C, 143 after SIGTERM; qualify: 10 fit for one broker, 11 unfit. See the help of each command."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Dump(DumpArgs),
    Verify(verify::VerifyArgs),
    Qualify(qualify::QualifyArgs),
    Import(import::ImportArgs),
    Bench(bench::BenchArgs),
    #[command(hide = true)]
    QualifyAgent(qualify::AgentArgs),
}

/// Shows what is in a file or directory: batches, index entries, transactions, metadata.
///
/// Reads only, and may run beside a live broker; the end of the newest segment may then look torn.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kaas-engine dump /data/topics/orders/0
  kaas-engine dump --records \\
      /data/topics/orders/0/00000001-00000000000000000000.log
  kaas-engine dump --json --records /data/topics/orders |
      jq 'select(.kind == \"record\").value'
  kaas-engine dump --json /data/topics | jq 'select(.kind == \"finding\")'

Exit codes: 0 all could be shown, 1 damage was found, 2 it could not run; 130 after Ctrl-C, 143 after SIGTERM.")]
struct DumpArgs {
    /// A file of a partition, or a directory: a partition, a topic, a whole data directory
    path: PathBuf,
    /// Show the records of each batch too
    #[arg(long)]
    records: bool,
    /// One JSON object a line, for jq
    #[arg(long)]
    json: bool,
    /// Largest batch whose records are shown, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = DumpOptions::default().max_batch_bytes)]
    max_batch_bytes: usize,
    /// Most bytes of a batch's records after decompression
    #[arg(long, value_name = "BYTES", default_value_t = DumpOptions::default().max_decompressed_bytes)]
    max_decompressed_bytes: usize,
    /// Largest index or metadata file, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = DumpOptions::default().max_file_bytes)]
    max_file_bytes: usize,
}

fn main() -> ExitCode {
    let matches = Cli::command().mut_subcommands(reflowed).get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let code = match cli.command {
        Command::Dump(args) => run_dump(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Qualify(args) => qualify::run(&args),
        Command::Import(args) => import::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::QualifyAgent(args) => qualify::run_agent(&args),
    };
    interrupt::code().unwrap_or(code)
}

/// The same command with each paragraph of what closes its help in one line, which is then wrapped as all else is; lines that are
/// indented stay as they are.
fn reflowed(command: clap::Command) -> clap::Command {
    let Some(closing) = command.get_after_help().map(ToString::to_string) else { return command };
    let mut text = String::new();
    let mut in_paragraph = false;
    for line in closing.lines() {
        let is_prose = !line.is_empty() && !line.starts_with(' ');
        match (text.is_empty(), is_prose && in_paragraph) {
            (true, _) => {}
            (false, true) => text.push(' '),
            (false, false) => text.push('\n'),
        }
        text.push_str(line);
        in_paragraph = is_prose && !line.ends_with(':');
    }
    command.after_help(text)
}

fn run_dump(args: &DumpArgs) -> ExitCode {
    let options = DumpOptions {
        records: args.records,
        json: args.json,
        max_batch_bytes: args.max_batch_bytes,
        max_decompressed_bytes: args.max_decompressed_bytes,
        max_file_bytes: args.max_file_bytes,
    };
    let outcome = open(&args.path).and_then(|(substrate, name)| {
        let mut out = BufWriter::new(io::stdout().lock());
        dump(&substrate, &name, &options, &mut out)
    });
    match outcome {
        Ok(summary) if summary.findings == 0 => ExitCode::SUCCESS,
        Ok(summary) => {
            complain(&format!("findings: {}, in files shown: {}", summary.findings, summary.files), None);
            ExitCode::from(FOUND)
        }
        // Whoever read our output has seen enough (`| head`).
        Err(DumpError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error.to_string(), hint(&error));
            ExitCode::from(COULD_NOT_RUN)
        }
    }
}

/// A directory as a volume, and the path below it: empty for a directory itself, the name for a file in it.
fn open(path: &Path) -> Result<(Mounted, PathBuf), DumpError> {
    match open_to_read(path) {
        Ok(substrate) => return Ok((substrate, PathBuf::new())),
        // No directory.
        Err(error) if error.class == ErrorClass::Invalid => {}
        Err(error) => return Err(error.into()),
    }
    let name = path
        .file_name()
        .ok_or_else(|| DumpError::NotAFile { path: path.to_owned(), kind: EntryKind::Other })?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    Ok((open_to_read(parent.unwrap_or(Path::new(".")))?, PathBuf::from(name)))
}

fn hint(error: &DumpError) -> Option<&'static str> {
    match error {
        DumpError::Storage(error) => match error.class {
            ErrorClass::NotFound => {
                Some("check the path; a data directory holds `topics/<topic>/<partition>/`")
            }
            ErrorClass::Invalid => Some("check who may read it, and run this as the broker's user"),
            ErrorClass::NoDescriptors => Some("raise the limit of open files (ulimit -n)"),
            ErrorClass::Stale | ErrorClass::Retriable => Some("the volume did not answer; try again"),
            ErrorClass::Io => Some("the volume reports an I/O error; look at the kernel's log"),
            _ => None,
        },
        DumpError::NothingHere { .. } => Some("a data directory holds `topics/<topic>/<partition>/`"),
        DumpError::NotAFile { .. } => Some("name a file, or a directory"),
        DumpError::NotOurs { .. } => {
            Some("name a segment, an index, a manifest, a fence, a journal, or a directory of them")
        }
        DumpError::Output(_) => None,
    }
}

/// Prints a report to standard output: as one JSON object, or as text for people. What went wrong, if it could not be.
fn print<T: Serialize>(report: &T, json: bool, text: impl FnOnce(&T) -> String) -> Result<(), String> {
    if json {
        let object = serde_json::to_string_pretty(report).map_err(|error| error.to_string())?;
        return write_out(&(object + "\n"));
    }
    print_text(&text(report))
}

/// As [`print`], of a report that is text already. What comes from names and files drives no terminal.
fn print_text(text: &str) -> Result<(), String> {
    write_out(&harmless(text))
}

fn write_out(text: &str) -> Result<(), String> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        // Whoever read our output has seen enough (`| head`).
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("cannot write the report: {error}"))
        }
        _ => Ok(()),
    }
}

fn complain(problem: &str, hint: Option<&str>) {
    let mut err = io::stderr().lock();
    // Nothing is left to tell it to.
    let _ = writeln!(err, "kaas-engine: {}", harmless(problem));
    if let Some(hint) = hint {
        let _ = writeln!(err, "  hint: {}", harmless(hint));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The commands are pasted: on a terminal of 80 columns none of their lines may be broken.
    #[test]
    fn examples_fit_a_terminal_and_exit_codes_are_told() {
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let closing = reflowed(command.clone()).get_after_help().unwrap().to_string();
            for line in closing.lines().filter(|line| line.starts_with(' ')) {
                assert!(line.chars().count() <= 80, "{line}");
            }
            assert!(closing.contains("\nExit codes: ") && closing.contains("143"), "{closing}");
        }
    }
}
