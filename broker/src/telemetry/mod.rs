//! Logs: on standard error, as text or JSON. Standard output belongs to what a person or a script waits for.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::server::LogFormat;

/// Logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// Not a level, nor a filter.
    #[error("'{filter}' is not a log level: {source}")]
    Filter {
        /// What was given.
        filter: String,
        /// What is wrong with it.
        source: tracing_subscriber::filter::ParseError,
    },
    /// A word alone that is no level: the filter would take it for a target, and log nothing else.
    #[error(
        "'{word}' is not a log level: error, warn, info, debug, trace, off, or a filter such as 'info,kaas_broker=debug'"
    )]
    Level {
        /// What was given.
        word: String,
    },
    /// Set up twice in one process.
    #[error("logging is set up already: {0}")]
    Twice(Box<dyn std::error::Error + Send + Sync>),
}

/// Sends the logs of this process to standard error. Once a process.
pub fn init(filter: &str, format: LogFormat) -> Result<(), TelemetryError> {
    let mut alone = filter.split(',').map(str::trim).filter(|word| !word.contains(['=', '[']));
    if let Some(word) = alone.find(|word| word.parse::<LevelFilter>().is_err()) {
        return Err(TelemetryError::Level { word: word.to_owned() });
    }
    let parsed = EnvFilter::try_new(filter)
        .map_err(|source| TelemetryError::Filter { filter: filter.to_owned(), source })?;
    let builder = tracing_subscriber::fmt().with_env_filter(parsed).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    }
    .map_err(TelemetryError::Twice)
}
