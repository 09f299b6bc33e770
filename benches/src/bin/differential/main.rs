//! kaas beside Apache Kafka: the same requests to both, the answers compared field by field.
//!
//! Every case is a sequence of requests over fresh topics and groups, run once against each broker. What must differ
//! (ids, addresses, times; `side.rs` has the list) is given a name or left out before the comparison; what differs on
//! purpose is in `expected.rs` with its reason. Exits with 1 if anything else differs.
//!
//!     python3 benches/kafka/kafka_broker.py --data-dir DIR --port 19092
//!     kaas --memory --listen 127.0.0.1:29092 --set group.initial.rebalance.delay.ms=0
//!     cargo run -p kaas-benches --bin differential -- --kaas 127.0.0.1:29092 --kafka 127.0.0.1:19092

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::type_complexity,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss
)]

mod batches;
mod cases;
mod expected;
mod side;
mod transcript;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::thread;

use clap::Parser;
use side::{Side, Who};

/// Compares the answers of kaas with those of Apache Kafka.
#[derive(Debug, Parser)]
struct Options {
    /// Address of a running kaas.
    #[arg(long)]
    kaas: SocketAddr,
    /// Address of a running Apache Kafka.
    #[arg(long)]
    kafka: SocketAddr,
    /// Only cases whose names begin with this.
    #[arg(long, default_value = "")]
    case: String,
    /// Print the differences that are on purpose, too.
    #[arg(long)]
    expected: bool,
    /// Compare the texts of error messages too, and not only whether there is one.
    #[arg(long)]
    texts: bool,
    /// Print every answer.
    #[arg(long)]
    verbose: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    // Names of topics and groups, so that a broker may be used for several runs.
    let run = format!("r{}", std::process::id());
    let versions = side::served_versions(options.kaas);
    let configs = side::broker_configs(options.kaas);
    let (mut compared, mut unexpected) = (0, 0);
    let mut on_purpose: BTreeMap<&str, usize> = BTreeMap::new();
    for (name, case) in cases::ALL.iter().filter(|(name, _)| name.starts_with(&options.case)) {
        let texts = options.texts;
        let start = |who, address| {
            let (run, versions, configs) = (run.clone(), versions.clone(), configs.clone());
            thread::Builder::new()
                .name(format!("{who:?}"))
                .spawn(move || {
                    let mut side = Side::connect(who, address, &format!("{run}-{name}"), versions);
                    (side.kaas_configs, side.texts) = (configs, texts);
                    case(&mut side);
                    side.finish()
                })
                .unwrap()
        };
        let kaas = start(Who::Kaas, options.kaas);
        let kafka = start(Who::Kafka, options.kafka);
        let (kaas, kafka) = (kaas.join(), kafka.join());
        let (Ok(kaas), Ok(kafka)) = (kaas, kafka) else {
            println!("==== {name}: could not be run to its end");
            unexpected += 1;
            continue;
        };
        if kaas.len() != kafka.len() {
            println!("==== {name}: {} answers of kaas, {} of Kafka", kaas.len(), kafka.len());
            unexpected += 1;
        }
        let mut found = transcript::Found::default();
        for (ours, theirs) in kaas.iter().zip(&kafka) {
            compared += 1;
            if options.verbose {
                println!("==== {name}: {}\n{}", ours.label, theirs.text);
            }
            if ours.label != theirs.label {
                println!("==== {name}: the sequences part: kaas '{}', Kafka '{}'", ours.label, theirs.label);
                unexpected += 1;
                break;
            }
            let lines = transcript::difference(&ours.text, &theirs.text);
            let (known, new): (Vec<_>, Vec<_>) =
                lines.iter().cloned().partition(|line| expected::reason(name, &ours.label, line).is_some());
            for line in &known {
                *on_purpose.entry(expected::reason(name, &ours.label, line).unwrap()).or_default() += 1;
            }
            unexpected += usize::from(!new.is_empty());
            found.add(&ours.label, if options.expected { lines } else { new });
        }
        found.print(name);
    }
    println!("\n{compared} answers compared, {unexpected} differ that should not; on purpose (lines):");
    for (reason, count) in on_purpose {
        println!("  {count:5}  {reason}");
    }
    ExitCode::from(u8::from(unexpected > 0))
}
