//! `kaas-explorer`: explores what whole engines do under pauses, crashes and faults.

use std::io::{IsTerminal, stderr};
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use kaas_explorer::scenario::{SCENARIOS, Scenario, by_name};
use kaas_explorer::{Explored, Line, Outcome, Plan, Shrunk, explore, run, shrink};
use serde_json::json;

/// Explores what whole engines do on one volume under pauses, crashes and faults, and checks that nothing that was
/// acknowledged or read is ever lost.
///
/// Every run is decided by one line, printed when it fails:
///
///     kaas-explorer --replay v1:takeovers:4711 --trace
///
/// Exit codes: 0 nothing wrong, 1 a run has found a problem, 2 wrong usage.
#[derive(Debug, Parser)]
#[command(name = "kaas-explorer", version, verbatim_doc_comment)]
struct Arguments {
    /// Seeds of each scenario.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Only this scenario (see --list); may be given several times.
    #[arg(long)]
    scenario: Vec<String>,
    /// Runs one line, as printed with a failure.
    #[arg(long, value_name = "LINE", conflicts_with_all = ["seeds", "seed", "scenario"])]
    replay: Option<Line>,
    /// With --replay: prints every step.
    #[arg(long, requires = "replay")]
    trace: bool,
    /// Most runs spent on making a failing line shorter; 0: none.
    #[arg(long, default_value_t = 500)]
    shrink: u64,
    /// Threads, each with one run at a time; without it, one for each processor.
    #[arg(long)]
    threads: Option<NonZeroUsize>,
    /// Ends after so many failures.
    #[arg(long, default_value_t = 5)]
    failures: usize,
    /// Plants a bug in the engine (as `NoFence`), to see it found.
    #[cfg(feature = "planted-bugs")]
    #[arg(long, value_parser = bug_by_name)]
    bug: Option<kaas_engine::planted::Bug>,
    /// Prints one JSON object instead of text.
    #[arg(long)]
    json: bool,
    /// Lists the scenarios.
    #[arg(long)]
    list: bool,
}

#[cfg(feature = "planted-bugs")]
fn bug_by_name(name: &str) -> Result<kaas_engine::planted::Bug, String> {
    let all = kaas_engine::planted::Bug::ALL;
    let names: Vec<String> = all.iter().map(|bug| format!("{bug:?}")).collect();
    let found = all.into_iter().find(|bug| format!("{bug:?}") == name);
    found.ok_or_else(|| format!("the bugs are {}", names.join(", ")))
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    #[cfg(feature = "planted-bugs")]
    let _planted = arguments.bug.map(kaas_engine::planted::plant);
    if arguments.list {
        for scenario in SCENARIOS {
            println!("{:<12} {}", scenario.name, scenario.about);
        }
        return ExitCode::SUCCESS;
    }
    let outcome = match &arguments.replay {
        Some(line) => replay(&arguments, line),
        None => explore_seeds(&arguments),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("kaas-explorer: {error}");
        ExitCode::from(2)
    })
}

fn replay(arguments: &Arguments, line: &Line) -> Result<ExitCode, String> {
    let outcome = run(line, arguments.trace).map_err(|error| error.to_string())?;
    if arguments.json {
        let trace = arguments.trace.then_some(&outcome.trace);
        println!("{}", json!({ "run": describe(&outcome), "trace": trace }));
    } else {
        outcome.trace.iter().for_each(|step| println!("{step}"));
        let counts = outcome.counts;
        println!("{line}\n{counts}; trace {:016x}", outcome.hash);
        outcome.problems.iter().for_each(|problem| println!("{problem}"));
    }
    Ok(if outcome.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn describe(outcome: &Outcome) -> serde_json::Value {
    let problems: Vec<String> = outcome.problems.iter().map(ToString::to_string).collect();
    json!({
        "line": outcome.line.to_string(),
        "problems": problems,
        "steps": outcome.counts.steps,
        "leaders": outcome.counts.leaders,
        "acknowledged": outcome.counts.acknowledged,
        "read": outcome.counts.read,
        "ranges": outcome.counts.ranges,
        "compacted": outcome.counts.compacted,
        "repaired": outcome.counts.repaired,
        "torn_fences": outcome.counts.torn_fences,
        "trace_hash": format!("{:016x}", outcome.hash),
    })
}

fn chosen(names: &[String]) -> Result<Vec<&'static Scenario>, String> {
    if names.is_empty() {
        return Ok(SCENARIOS.to_vec());
    }
    let find = |name: &String| {
        by_name(name).ok_or_else(|| format!("there is no scenario {name:?}; --list shows those there are"))
    };
    names.iter().map(find).collect()
}

fn explore_seeds(arguments: &Arguments) -> Result<ExitCode, String> {
    let scenarios = chosen(&arguments.scenario)?;
    let threads =
        arguments.threads.or_else(|| std::thread::available_parallelism().ok()).map_or(1, NonZeroUsize::get);
    let plan = Plan {
        scenarios: &scenarios,
        first_seed: arguments.seed,
        seeds: arguments.seeds,
        threads,
        failures_max: arguments.failures.max(1),
        #[cfg(feature = "planted-bugs")]
        bug: arguments.bug,
    };
    let began = Instant::now();
    let bar = progress_bar(arguments.seeds.saturating_mul(scenarios.len() as u64), "runs");
    let explored = explore(&plan, |runs| bar.set_position(runs));
    bar.finish_and_clear();
    let elapsed = began.elapsed();
    let shrunk: Vec<Shrunk> =
        explored.failures.iter().map(|failed| shrink_one(failed, arguments.shrink)).collect();
    if arguments.json {
        print_json(&explored, &shrunk, elapsed);
    } else {
        print_text(&explored, &shrunk, elapsed);
    }
    Ok(if shrunk.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn shrink_one(failed: &Outcome, runs_max: u64) -> Shrunk {
    let bar = progress_bar(failed.taken.values().map(|numbers| numbers.len() as u64).sum(), "decisions left");
    let shrunk = shrink(failed, runs_max, |left| bar.set_position(left as u64));
    bar.finish_and_clear();
    shrunk
}

fn progress_bar(length: u64, what: &'static str) -> ProgressBar {
    if !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(length).with_message(what);
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len} {msg}, {eta} left") {
        bar.set_style(style);
    }
    bar
}

fn per_minute(runs: u64, elapsed: Duration) -> u64 {
    runs.saturating_mul(60_000)
        .checked_div(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).max(1))
        .unwrap_or(0)
}

fn print_text(explored: &Explored, shrunk: &[Shrunk], elapsed: Duration) {
    let counts = explored.counts;
    println!(
        "{} runs in {:.1} s ({} a minute): {counts}",
        explored.runs,
        elapsed.as_secs_f64(),
        per_minute(explored.runs, elapsed)
    );
    for (failed, shrunk) in explored.failures.iter().zip(shrunk) {
        println!("\n{}", failed.line);
        failed.problems.iter().for_each(|problem| println!("  {problem}"));
        if shrunk.left < shrunk.of {
            println!("  shrunk from {} decisions to {} in {} runs:", shrunk.of, shrunk.left, shrunk.runs);
            println!("  {}", shrunk.outcome.line);
            shrunk.outcome.problems.iter().for_each(|problem| println!("    {problem}"));
        }
    }
    match explored.failures.len() {
        0 => println!("nothing wrong was found"),
        count => println!("\n{count} runs failed; replay one with: kaas-explorer --trace --replay <line>"),
    }
}

fn print_json(explored: &Explored, shrunk: &[Shrunk], elapsed: Duration) {
    let failures: Vec<_> = explored
        .failures
        .iter()
        .zip(shrunk)
        .map(|(failed, shrunk)| json!({ "run": describe(failed), "shrunk": describe(&shrunk.outcome) }))
        .collect();
    let counts = explored.counts;
    println!(
        "{}",
        json!({
            "format": 1,
            "runs": explored.runs,
            "elapsed_ms": u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
            "runs_per_minute": per_minute(explored.runs, elapsed),
            "steps": counts.steps,
            "leaders": counts.leaders,
            "acknowledged": counts.acknowledged,
            "read": counts.read,
            "ranges": counts.ranges,
            "compacted": counts.compacted,
            "repaired": counts.repaired,
            "torn_fences": counts.torn_fences,
            "failures": failures,
        })
    );
}
