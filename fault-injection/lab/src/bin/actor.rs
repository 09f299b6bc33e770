//! `kaas-lab-actor DIR`: runs the engine on a directory as its standard input says. See `kaas_lab::protocol`.

use std::path::PathBuf;
use std::process::ExitCode;

use kaas_lab::actor::{self, Opener};

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let (root, option) = (arguments.next().map(PathBuf::from), arguments.next());
    let as_local = option.is_some_and(|option| option == "--as-local");
    let Some(root) = root else {
        eprintln!("usage: kaas-lab-actor DIR [--as-local]");
        return ExitCode::from(2);
    };
    match actor::run(Opener { root, as_local }, std::io::stdin().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("kaas-lab-actor: {}", failure.text);
            ExitCode::FAILURE
        }
    }
}
