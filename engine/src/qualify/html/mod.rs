//! The report as one HTML file that stands alone: no script, no font, no picture from elsewhere; readable on a screen, light
//! or dark, and on paper.

mod plot;

use std::fmt::{self, Write};

use super::check::{Basis, Check, Outcome};
use super::latency::LatencyRow;
use super::pair::Clients;
use super::protocol::{Host, Volume};
use super::report::{Report, Verdict};
use super::text::{clients_words, columns, verdict_words, volume_words};
use crate::dump::utc;

/// The report as HTML.
pub fn render(report: &Report) -> String {
    let mut html = String::new();
    // A String takes everything.
    let _ = write_report(&mut html, report);
    html
}

/// Text within HTML.
pub(super) struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            match letter {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                _ => f.write_char(letter)?,
            }
        }
        Ok(())
    }
}

fn write_report(html: &mut String, report: &Report) -> fmt::Result {
    let dir = Escaped(&report.dir);
    write!(
        html,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>kaas qualify: {dir}</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>\n\
         <header><p>kaas-engine qualify</p><h1>{dir}</h1></header>\n",
        include_str!("style.css"),
    )?;
    write_verdict(html, report)?;
    write_facts(html, report)?;
    let (required, noted): (Vec<_>, Vec<_>) =
        report.checks.iter().partition(|check| check.basis != Basis::Nothing);
    html.push_str(
        "<section>\n<h2>What kaas relies on</h2>\n\
         <p>P1 to P4 are the properties that GUARANTEES.md asks of a volume.</p>\n<table>\n",
    );
    for check in required {
        write_required(html, check)?;
    }
    html.push_str("</table>\n</section>\n");
    if !report.latencies.is_empty() {
        write_latencies(html, report)?;
    }
    html.push_str("<section>\n<h2>Good to know</h2>\n<p>kaas copes with whatever these are.</p>\n<table>\n");
    for check in noted {
        writeln!(html, "<tr><td>{}</td><td>{}</td></tr>", Escaped(check.title), Escaped(&check.detail))?;
    }
    write!(
        html,
        "</table>\n</section>\n<footer>kaas-engine {}, {}. The same report for programs: --json.</footer>\n\
         </main>\n</body>\n</html>\n",
        report.version,
        began(report),
    )
}

fn began(report: &Report) -> String {
    let text = utc(i64::try_from(report.began_ms).unwrap_or(0));
    let (date, time) = text.split_once('T').unwrap_or((&text, ""));
    format!("{date} {} UTC", time.get(..5).unwrap_or(time))
}

fn write_verdict(html: &mut String, report: &Report) -> fmt::Result {
    let class = match report.verdict {
        Verdict::Fit => "fit",
        Verdict::FitForOneBroker => "one",
        Verdict::Unfit => "unfit",
    };
    write!(html, "<div class=\"verdict {class}\"><strong>{}</strong>", verdict_words(report.verdict))?;
    if !report.reasons.is_empty() {
        html.push_str("<ul>");
        for reason in &report.reasons {
            write!(html, "<li>{}</li>", Escaped(reason))?;
        }
        html.push_str("</ul>");
    }
    html.push_str("</div>\n");
    Ok(())
}

fn write_facts(html: &mut String, report: &Report) -> fmt::Result {
    let passes = if report.passes == 1 { "pass" } else { "passes" };
    let took = report.elapsed_ms / 1000;
    let took = if took < 120 { format!("{took} s") } else { format!("{} min", took / 60) };
    let mut facts = vec![
        ("Volume", volume_words(&report.volume)),
        ("Options", options(&report.volume)),
        ("Host", host(&report.host)),
    ];
    if report.clients != Clients::One {
        facts.push(("Second volume", volume_words(&report.second_volume)));
        if report.second_volume.options != report.volume.options {
            facts.push(("Second options", options(&report.second_volume)));
        }
    }
    if report.clients == Clients::TwoHosts {
        facts.push(("Second host", host(&report.second_host)));
    }
    facts.push(("Tried by", clients_words(report)));
    facts.push(("When", format!("{}, {} {passes}, {took}", began(report), report.passes)));
    html.push_str("<dl>");
    for (name, value) in facts {
        write!(html, "<dt>{name}</dt><dd>{}</dd>", Escaped(&value))?;
    }
    html.push_str("</dl>\n");
    Ok(())
}

fn options(volume: &Volume) -> String {
    let mut told: Vec<&str> = Vec::new();
    for option in &volume.options {
        // The mount's and the file system's options have some in common.
        if !told.contains(&option.as_str()) {
            told.push(option);
        }
    }
    told.join(", ")
}

fn host(host: &Host) -> String {
    format!("{}, Linux {}", host.name, host.kernel)
}

fn write_required(html: &mut String, check: &Check) -> fmt::Result {
    let (class, word) = match check.outcome {
        Outcome::Passed => ("fit", "ok"),
        Outcome::Failed => ("unfit", "failed"),
        Outcome::Noted | Outcome::NotTested => ("none", "not tried"),
    };
    writeln!(
        html,
        "<tr><td><span class=\"pill {class}\">{word}</span></td><td class=\"basis\">{}</td>\
         <td>{}<small>{}</small></td></tr>",
        check.basis,
        Escaped(check.title),
        Escaped(&check.detail),
    )
}

fn write_latencies(html: &mut String, report: &Report) -> fmt::Result {
    html.push_str(
        "<section>\n<h2>Latency of single calls</h2>\n\
         <p>By the first process. The fence read is the read of the fence that each commit makes.</p>\n<table>\n<tr><th>Call</th>",
    );
    for head in ["count", "p50", "p99", "p99.9", "max"] {
        write!(html, "<th class=\"number\">{head}</th>")?;
    }
    html.push_str("</tr>\n");
    for row in &report.latencies {
        write!(html, "<tr><td>{}</td><td class=\"number\">{}</td>", Escaped(row.title), row.count)?;
        for value in columns(row) {
            write!(html, "<td class=\"number\">{value}</td>")?;
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</table>\n</section>\n<section>\n<h2>Spread</h2>\n<figure>\n");
    html.push_str(&plot::spread(&report.latencies));
    html.push_str(
        "<figcaption>Dot: p50. Bar: p50 to p99. Line: lowest to highest. Logarithmic.</figcaption>\n</figure>\n</section>\n",
    );
    html.push_str("<section>\n<h2>Percentiles</h2>\n<div class=\"panels\">\n");
    for (title, names) in GROUPS {
        let rows: Vec<_> = of_group(report, names);
        writeln!(html, "<figure>{}</figure>", plot::percentiles(title, &rows))?;
    }
    html.push_str("</div>\n</section>\n");
    if report.passes >= 3 {
        html.push_str(
            "<section>\n<h2>Over time</h2>\n<p>p50 (solid) and p99 (dashed) of each pass.</p>\n<div class=\"panels\">\n",
        );
        for (title, names) in GROUPS {
            writeln!(html, "<figure>{}</figure>", plot::over_time(title, &of_group(report, names)))?;
        }
        html.push_str("</div>\n</section>\n");
    }
    html.push_str("<section>\n<h2>Throughput</h2>\n<table>\n");
    for flow in &report.throughput {
        writeln!(
            html,
            "<tr><td>{}</td><td class=\"number\">{:.0} MB/s</td></tr>",
            Escaped(flow.title),
            flow.bytes_per_second / 1e6,
        )?;
    }
    html.push_str("</table>\n</section>\n");
    Ok(())
}

/// Rows that are shown in one plot, at most three.
const GROUPS: &[(&str, &[(&str, &str)])] = &[
    ("Names", &[("create", "create"), ("rename", "rename"), ("open", "open")]),
    ("Records", &[("record_write", "write + sync"), ("record_read", "fence read")]),
    (
        "Write + fdatasync",
        &[("write_sync_1m", "1 MiB"), ("write_sync_64k", "64 KiB"), ("write_sync_4k", "4 KiB")],
    ),
];

fn of_group<'a>(
    report: &'a Report,
    names: &[(&'static str, &'static str)],
) -> Vec<(&'static str, &'a LatencyRow)> {
    let row = |name| report.latencies.iter().find(|row| row.name == name);
    names.iter().filter_map(|(name, short)| Some((*short, row(*name)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_break_out() {
        assert_eq!(Escaped("<a href=\"x\">&'").to_string(), "&lt;a href=&quot;x&quot;&gt;&amp;&#39;");
    }
}
