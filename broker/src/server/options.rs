//! The command line and environment of `kaas`.
//!
//! Pure: parsing and checking only. Everything a flag says can be said by an environment variable `KAAS_…`; the
//! flag wins.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::{BoolishValueParser, FalseyValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches, Parser, ValueEnum};
use kaas_control::election::ClusterId;

/// What `kaas --help` says below the options.
const EXAMPLES: &str = "\
Examples:
  kaas
      Serve this machine on localhost:9092, with the data in ./kaas-data (created if absent).
  kaas --data-dir /srv/kaas --listen 0.0.0.0:9092
      Serve the network. Clients are told the address that they connected to.
  kaas --listen 0.0.0.0:9092 --advertised broker.example.org:9092
      The same behind a port mapping or a DNS name: clients are told this one.
  kaas --memory --listen localhost:0
      For tests: nothing is kept, any free port; 'kaas is ready' says which.
  kaas --set log.retention.hours=24 --set auto.create.topics.enable=false
      Kafka's broker configs, by their names.

Try it:
  echo hello | kcat -b localhost:9092 -t greetings -P
  kcat -b localhost:9092 -t greetings -C -e

Exit codes:
  0 stopped cleanly, 1 any other failure, 2 bad usage,
  3 the data directory cannot be used, 4 the address is in use.

Stop it with Ctrl-C or SIGTERM: requests in flight are answered and files closed.
A second signal stops at once; what was acknowledged is safe either way.";

/// What `kaas` is.
const ABOUT: &str = "A broker for Apache Kafka's clients; the file system is the replica.";

/// The options of `kaas`.
#[derive(Debug, Clone, Parser)]
#[command(name = "kaas", version, about = ABOUT, after_help = EXAMPLES, max_term_width = 100)]
pub struct Options {
    /// Directory of all data; created if absent.
    #[arg(long, env = "KAAS_DATA_DIR", value_name = "DIR", default_value = "./kaas-data")]
    pub data_dir: PathBuf,

    /// Refuse to start if the data directory holds no data: set it once the broker has started for the first time, so that a
    /// volume that is not mounted is not taken for a new cluster.
    #[arg(long, env = "KAAS_REQUIRE_DATA", value_parser = BoolishValueParser::new())]
    pub require_data: bool,

    /// The id that the cluster must have. A new data directory gets it; one with another id is refused. Default: whatever the
    /// directory says, a random one for a new directory.
    #[arg(long, env = "KAAS_CLUSTER_ID", value_name = "ID", value_parser = cluster_id)]
    pub cluster_id: Option<ClusterId>,

    /// What the data directory is on. Found out by itself where the system says enough.
    #[arg(long, env = "KAAS_SUBSTRATE", value_name = "KIND", default_value = "auto")]
    pub substrate: SubstrateKind,

    /// Keep everything in memory and nothing on disk, for tests.
    #[arg(long, env = "KAAS_MEMORY", value_parser = BoolishValueParser::new())]
    pub memory: bool,

    /// Where to listen. Port 0 picks a free one. The default serves this machine only, since anybody who can
    /// connect may read and write.
    #[arg(long, env = "KAAS_LISTEN", value_name = "HOST:PORT", default_value = "localhost:9092")]
    pub listen: HostPort,

    /// What clients are told to connect to. Default: the host of --listen, or, if that is 0.0.0.0 or [::], the
    /// address the client reached us at.
    #[arg(long, env = "KAAS_ADVERTISED", value_name = "HOST:PORT", value_parser = advertised)]
    pub advertised: Option<HostPort>,

    /// Number of this broker in the cluster.
    #[arg(long, env = "KAAS_NODE_ID", value_name = "N", default_value_t = 1, allow_negative_numbers = true,
          value_parser = clap::value_parser!(i32).range(0..))]
    pub node_id: i32,

    /// A broker config of Kafka's, as name=value; may be repeated (in the environment: separated by ';').
    #[arg(long = "set", env = "KAAS_SET", value_name = "NAME=VALUE", value_delimiter = ';')]
    pub set: Vec<Setting>,

    /// Threads that serve the network. Default: the number of processors, at most 4.
    #[arg(long, env = "KAAS_WORKER_THREADS", value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=512))]
    pub worker_threads: Option<u16>,

    /// Memory for requests that are being read or served, in MiB; clients wait beyond it.
    #[arg(long, env = "KAAS_REQUEST_MEMORY_MIB", value_name = "MIB", default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(1..=4095))]
    pub request_memory_mib: u32,

    /// How long a stop waits for requests in flight, in milliseconds.
    #[arg(long, env = "KAAS_SHUTDOWN_TIMEOUT_MS", value_name = "MS", default_value_t = 10_000)]
    pub shutdown_timeout_ms: u64,

    /// What to log: error, warn, info, debug, trace, or a filter such as 'info,kaas_broker=debug'.
    #[arg(long, env = "KAAS_LOG_LEVEL", value_name = "LEVEL", default_value = "info")]
    pub log_level: String,

    /// How to log (on standard error).
    #[arg(long, env = "KAAS_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,

    /// Start although another process holds the directory's lock. Only for tests of what happens then.
    #[arg(long, env = "KAAS_IGNORE_LOCK", hide = true, value_parser = FalseyValueParser::new())]
    pub ignore_lock: bool,

    /// The configs of `set` come from KAAS_SET.
    #[arg(skip)]
    pub set_by_environment: bool,
}

impl Options {
    /// Reads the command line (its first word is the program's name) and the environment.
    ///
    /// # Errors
    ///
    /// Bad usage, or a call for help or the version. The message names the variable if a value of the environment is at fault.
    pub fn read<I, T>(arguments: I) -> Result<Self, clap::Error>
    where
        I: IntoIterator<Item = T>,
        T: Into<std::ffi::OsString> + Clone,
    {
        let arguments: Vec<std::ffi::OsString> = arguments.into_iter().map(Into::into).collect();
        let mut command = Self::command();
        let matches = command
            .try_get_matches_from_mut(&arguments)
            .map_err(|error| name_the_variable(&command, error, &arguments))?;
        let said = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
        if said("memory") && said("data_dir") {
            // Clap's own check would refuse KAAS_DATA_DIR beside --memory, too.
            let problem = "--memory keeps nothing on disk: it cannot be used with --data-dir";
            return Err(command.error(ErrorKind::ArgumentConflict, problem));
        }
        if said("memory") && said("require_data") {
            let problem = "--memory keeps nothing on disk: it cannot be used with --require-data";
            return Err(command.error(ErrorKind::ArgumentConflict, problem));
        }
        let mut options = Self::from_arg_matches(&matches)?;
        options.set_by_environment = matches.value_source("set") == Some(ValueSource::EnvVariable);
        Ok(options)
    }
}

/// The error with the variable that the wrong value comes from, unless the flag itself was given.
fn name_the_variable(
    command: &clap::Command,
    error: clap::Error,
    arguments: &[std::ffi::OsString],
) -> clap::Error {
    let Some(ContextValue::String(shown)) = error.get(ContextKind::InvalidArg) else { return error };
    let Some(argument) = command.get_arguments().find(|argument| argument.to_string() == *shown) else {
        return error;
    };
    let flag = format!("--{}", argument.get_long().unwrap_or_default());
    let given = arguments
        .iter()
        .any(|word| word.to_string_lossy().split('=').next().is_some_and(|word| word == flag));
    match argument.get_env().filter(|name| !given && std::env::var_os(name).is_some()) {
        Some(name) => {
            let rendered = error.to_string();
            let first = rendered.lines().next().unwrap_or_default();
            let problem = first.strip_prefix("error: ").unwrap_or(first);
            let problem = format!("{problem}\n\n  the value comes from {}", name.to_string_lossy());
            command.clone().error(error.kind(), problem)
        }
        None => error,
    }
}

fn cluster_id(text: &str) -> Result<ClusterId, String> {
    ClusterId::parse(text).map_err(|error| error.to_string())
}

/// An address that clients can connect to.
fn advertised(text: &str) -> Result<HostPort, String> {
    let address: HostPort = text.parse().map_err(|error: HostPortError| error.to_string())?;
    if address.host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_unspecified()) {
        return Err(format!(
            "nobody can connect to {}: name a host that clients reach, or leave --advertised out",
            address.host
        ));
    }
    Ok(address)
}

/// What a data directory is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SubstrateKind {
    /// Find out; a file system of no known kind is taken for one of this host.
    Auto,
    /// A file system of this host.
    Local,
    /// NFS, version 4.1 or later, mounted hard.
    Nfs,
    /// CephFS, by the kernel's client or ceph-fuse.
    Cephfs,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// A host (name or address, without brackets) and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPort {
    /// Name or address.
    pub host: String,
    /// Port; 0 means any.
    pub port: u16,
}

/// Not HOST:PORT.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostPortError {
    /// Not of that form.
    #[error("'{text}' is not HOST:PORT (an IPv6 address needs brackets: [::1]:9092)")]
    Form {
        /// What was given.
        text: String,
    },
    /// The port is a number that no port has.
    #[error("port {port} is out of range: 0 to 65535")]
    Port {
        /// The number that was given.
        port: String,
    },
}

impl FromStr for HostPort {
    type Err = HostPortError;

    fn from_str(text: &str) -> Result<Self, HostPortError> {
        let error = || HostPortError::Form { text: text.to_owned() };
        let (host, port) = text.rsplit_once(':').ok_or_else(error)?;
        let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().map_err(|_| match is_number {
            true => HostPortError::Port { port: port.to_owned() },
            false => error(),
        })?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        match (bare, host) {
            (Some(bare), _) if !bare.is_empty() => Ok(Self { host: bare.to_owned(), port }),
            (None, "") => Ok(Self { host: "0.0.0.0".to_owned(), port }),
            (None, host) if !host.contains([':', '[', ']', '/']) => Ok(Self { host: host.to_owned(), port }),
            _ => Err(error()),
        }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// `name=value` of a broker config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The config's name.
    pub name: String,
    /// Its value, as text.
    pub value: String,
}

/// Not NAME=VALUE.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not NAME=VALUE")]
pub struct SettingError {
    text: String,
}

impl FromStr for Setting {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        match text.split_once('=') {
            Some((name, value)) if !name.trim().is_empty() => {
                Ok(Self { name: name.trim().to_owned(), value: value.trim().to_owned() })
            }
            _ => Err(SettingError { text: text.to_owned() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Options, clap::Error> {
        Options::read(std::iter::once(&"kaas").chain(arguments))
    }

    #[test]
    fn addresses() {
        for (text, host, port) in [
            ("localhost:9092", "localhost", 9092),
            ("0.0.0.0:0", "0.0.0.0", 0),
            ("[::1]:9", "::1", 9),
            (":9092", "0.0.0.0", 9092),
        ] {
            let parsed: HostPort = text.parse().unwrap();
            assert_eq!((parsed.host.as_str(), parsed.port), (host, port), "{text}");
        }
        for bad in ["", "localhost", "localhost:", "localhost:70000", "::1:9092", "[]:1", "http://a:1", "a:b"]
        {
            assert!(bad.parse::<HostPort>().is_err(), "{bad}");
        }
        assert_eq!("[::1]:9".parse::<HostPort>().unwrap().to_string(), "[::1]:9");
    }

    #[test]
    fn flags_and_defaults() {
        let options = parse(&[]).unwrap();
        assert_eq!(options.listen.to_string(), "localhost:9092");
        assert_eq!(options.data_dir, PathBuf::from("./kaas-data"));
        let options =
            parse(&["--set", "a.b=c=d", "--set", "e=", "--node-id", "7", "--log-format", "json"]).unwrap();
        assert_eq!(options.set.len(), 2);
        assert_eq!(options.set[0], Setting { name: "a.b".into(), value: "c=d".into() });
        assert_eq!((options.node_id, options.log_format), (7, LogFormat::Json));
        let said = parse(&["--node-id", "-1"]).unwrap_err().to_string();
        assert!(said.contains("-1 is not in 0.."), "{said}");
        for bad in [&["--node-id", "-1"][..], &["--set", "x"], &["--listen", "x"], &["--nope"], &["extra"]] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
        for address in ["0.0.0.0:9092", "[::]:9092", ":9092"] {
            let said = parse(&["--advertised", address]).unwrap_err().to_string();
            assert!(said.contains("nobody can connect to"), "{said}");
        }
        assert!(parse(&["--advertised", "broker.example.org:9092"]).is_ok());
        let said = parse(&["--listen", "localhost:99999"]).unwrap_err().to_string();
        assert!(said.contains("port 99999 is out of range"), "{said}");
        assert!(parse(&["--memory"]).is_ok());
        let said = parse(&["--memory", "--data-dir", "x"]).unwrap_err();
        assert_eq!(said.kind(), ErrorKind::ArgumentConflict);
    }
}
