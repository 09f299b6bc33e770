//! The command `kaas`: one broker.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use kaas_broker::net::{Phase, Shutdown};
use kaas_broker::server::{self, Options, StartError, Started};
use kaas_broker::telemetry;
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Anything but usage, data directory and address.
const FAILED: u8 = 1;
/// Bad flags.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let options = Options::read(std::env::args_os()).unwrap_or_else(|error| error.exit());
    if let Err(error) = telemetry::init(&options.log_level, options.log_format) {
        return fail(USAGE, &error);
    }
    server::raise_descriptors();
    let started = match server::start(&options) {
        Ok(started) => started,
        Err(error) if options.set_by_environment && matches!(error, StartError::Config(_)) => {
            return fail(error.exit_code(), &format!("{error} (KAAS_SET sets it)"));
        }
        Err(error) => {
            let exit_code = fail(error.exit_code(), &error);
            if let Some(hint) = error.hint() {
                eprintln!("  hint: {hint}");
            }
            return exit_code;
        }
    };
    let threads = options.worker_threads.map_or_else(server::default_worker_threads, usize::from);
    let runtime = match Builder::new_multi_thread().worker_threads(threads).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(FAILED, &format!("cannot start the threads of the network: {error}")),
    };
    match runtime.block_on(serve(started, &options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(FAILED, &error),
    }
}

async fn serve(started: Started, options: &Options) -> Result<(), Box<dyn std::error::Error>> {
    let interrupt = signal(SignalKind::interrupt())?;
    let terminate = signal(SignalKind::terminate())?;
    tokio::spawn(stop_on_signal(interrupt, terminate, started.shutdown()));
    announce(&started, options)?;
    started.serve(Duration::from_millis(options.shutdown_timeout_ms)).await?;
    Ok(())
}

/// The first signal stops orderly, the second at once.
async fn stop_on_signal(mut interrupt: Signal, mut terminate: Signal, shutdown: Shutdown) {
    let mut next = async || {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    next().await;
    shutdown.advance(Phase::Draining);
    next().await;
    // What was acknowledged is on the volume; the next start recovers the rest.
    std::process::exit(i32::from(FAILED));
}

/// What a person wants to know, then the one line that scripts wait for.
fn announce(started: &Started, options: &Options) -> std::io::Result<()> {
    let broker = started.broker();
    let bootstrap = &started.bootstrap;
    let mut out = std::io::stdout().lock();
    if options.memory {
        writeln!(out, "kaas {} keeps everything in memory; nothing outlives it", env!("CARGO_PKG_VERSION"))?;
    } else {
        writeln!(out, "kaas {}, data in {}", env!("CARGO_PKG_VERSION"), broker.data_dir)?;
    }
    match &broker.advertised {
        Some(advertised) if advertised != bootstrap => {
            writeln!(out, "clients are told to connect to {advertised}")?
        }
        Some(_) => {}
        None => writeln!(out, "clients are told to connect to the address that they reach this broker at")?,
    }
    writeln!(
        out,
        "try: echo hello | kcat -b {bootstrap} -t greetings -P && kcat -b {bootstrap} -t greetings -C -e"
    )?;
    writeln!(out, "kaas is ready: bootstrap.servers={bootstrap}")?;
    out.flush()
}

fn fail(code: u8, error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("kaas: {error}");
    ExitCode::from(code)
}
