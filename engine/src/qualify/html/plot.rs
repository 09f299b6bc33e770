//! Plots of latencies as inline SVG. Colours and fonts come from the page's style, so that they follow it into the dark
//! and onto paper.

use std::fmt::{self, Write};

use super::Escaped;
use crate::qualify::latency::LatencyRow;
use crate::qualify::text::micros_words;

/// A logarithmic axis: microseconds to places.
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    /// Whole decades that hold all of `values`; at least two of them.
    fn over(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (mut low, mut high) = (f64::INFINITY, 0.0_f64);
        for value in values.filter(|value| *value > 0.0) {
            low = low.min(value);
            high = high.max(value);
        }
        if low > high {
            (low, high) = (1.0, 1000.0);
        }
        let low = low.log10().floor();
        let high = high.log10().ceil().max(low + 2.0);
        Self { low, high, from, to }
    }

    fn at(&self, micros: f64) -> f64 {
        let share = (micros.max(1e-3).log10() - self.low) / (self.high - self.low);
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// The decades and what they are called.
    fn decades(&self) -> impl Iterator<Item = (f64, String)> {
        let steps = std::iter::successors(Some(self.low), |decade| Some(decade + 1.0));
        let high = self.high;
        steps
            .take_while(move |decade| *decade <= high)
            .map(|decade| (10_f64.powf(decade), decade_words(decade)))
    }
}

fn decade_words(decade: f64) -> String {
    let micros = 10_f64.powf(decade);
    match micros {
        _ if micros < 0.99 => format!("{micros} µs"),
        _ if micros < 999.0 => format!("{micros:.0} µs"),
        _ if micros < 999_000.0 => format!("{:.0} ms", micros / 1e3),
        _ => format!("{:.0} s", micros / 1e6),
    }
}

/// One row an operation: lowest, p50, p99, highest on a common axis.
pub fn spread(rows: &[LatencyRow]) -> String {
    let mut svg = String::new();
    // A String takes everything.
    let _ = write_spread(&mut svg, rows);
    svg
}

fn write_spread(svg: &mut String, rows: &[LatencyRow]) -> fmt::Result {
    const WIDTH: f64 = 924.0;
    const LEFT: f64 = 190.0;
    const RIGHT: f64 = 20.0;
    const TOP: f64 = 26.0;
    const STEP: f64 = 32.0;
    let axis = Axis::over(rows.iter().flat_map(|row| [row.min_us, row.max_us]), LEFT, WIDTH - RIGHT);
    let bottom = TOP + STEP * rows.len() as f64;
    open(svg, WIDTH, bottom + 8.0, "Latency of each call: lowest, p50, p99 and highest")?;
    for (micros, words) in axis.decades() {
        let x = axis.at(micros);
        line(svg, "grid", (x, TOP - 4.0), (x, bottom))?;
        writeln!(svg, "<text class=\"soft\" x=\"{x:.1}\" y=\"14\" text-anchor=\"middle\">{words}</text>")?;
    }
    for (number, row) in rows.iter().enumerate() {
        let y = TOP + STEP * (number as f64 + 0.5);
        let [low, p50, p99, high] =
            [row.min_us, row.p50_us, row.p99_us, row.max_us].map(|micros| axis.at(micros));
        write!(svg, "<g><title>{}: ", Escaped(row.title))?;
        let told =
            [("lowest", row.min_us), ("p50", row.p50_us), ("p99", row.p99_us), ("highest", row.max_us)];
        for (name, micros) in told {
            write!(svg, "{name} {} ", micros_words(micros))?;
        }
        writeln!(svg, "</title>")?;
        writeln!(svg, "<text x=\"0\" y=\"{:.1}\">{}</text>", y + 4.0, Escaped(row.title))?;
        line(svg, "whisker", (low, y), (high, y))?;
        for end in [low, high] {
            line(svg, "whisker", (end, y - 4.0), (end, y + 4.0))?;
        }
        let width = (p99 - p50).max(1.0);
        writeln!(
            svg,
            "<rect class=\"span\" x=\"{p50:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"16\" rx=\"2\"/>",
            y - 8.0
        )?;
        line(svg, "p99", (p99, y - 8.0), (p99, y + 8.0))?;
        writeln!(svg, "<circle class=\"median\" cx=\"{p50:.1}\" cy=\"{y:.1}\" r=\"4.5\"/></g>")?;
    }
    svg.push_str("</svg>\n");
    Ok(())
}

const PANEL_WIDTH: f64 = 300.0;
const PANEL_HEIGHT: f64 = 236.0;
const PANEL_LEFT: f64 = 46.0;
const PANEL_RIGHT: f64 = 18.0;
const PANEL_TOP: f64 = 46.0;
const PANEL_BOTTOM: f64 = 206.0;

/// Curves of percentiles: towards the right each step leaves a tenth of the calls.
pub fn percentiles(title: &str, rows: &[(&str, &LatencyRow)]) -> String {
    let mut svg = String::new();
    let _ = write_percentiles(&mut svg, title, rows);
    svg
}

fn write_percentiles(svg: &mut String, title: &str, rows: &[(&str, &LatencyRow)]) -> fmt::Result {
    let values = rows.iter().flat_map(|(_, row)| row.percentiles.iter().map(|(_, micros)| *micros));
    let axis = panel(svg, title, rows, values, "percentiles of latency")?;
    // How many tenths are left: 0 for all, 1 for the p90, 3 for the p99.9.
    let nines = |share: f64| -(1.0 - share).max(1e-9).log10();
    let shares = rows.iter().flat_map(|(_, row)| row.percentiles.iter().map(|(share, _)| *share));
    let deepest = shares.filter(|share| *share < 1.0).map(nines).fold(2.0, f64::max);
    let end = deepest + 0.3;
    let place = |nines: f64| PANEL_LEFT + nines / end * (PANEL_WIDTH - PANEL_LEFT - PANEL_RIGHT);
    for (share, words) in [
        (0.0, "0"),
        (0.5, "50"),
        (0.9, "90"),
        (0.99, "99"),
        (0.999, "99.9"),
        (0.9999, "99.99"),
        (0.99999, "99.999"),
    ] {
        if nines(share) <= end {
            below(svg, place(nines(share)), words)?;
        }
    }
    writeln!(
        svg,
        "<text class=\"soft\" x=\"{}\" y=\"{}\" text-anchor=\"end\">percent of the calls</text>",
        PANEL_WIDTH - PANEL_RIGHT,
        PANEL_BOTTOM + 30.0
    )?;
    for (number, (_, row)) in rows.iter().enumerate() {
        // The highest of all has no place on this axis: it stands at its end.
        let points = row.percentiles.iter().map(|(share, micros)| {
            let at = if *share < 1.0 { nines(*share) } else { end };
            (place(at), axis.at(*micros))
        });
        curve(svg, number, "curve", points)?;
    }
    svg.push_str("</svg>\n");
    Ok(())
}

/// p50 and p99 of each pass.
pub fn over_time(title: &str, rows: &[(&str, &LatencyRow)]) -> String {
    let mut svg = String::new();
    let _ = write_over_time(&mut svg, title, rows);
    svg
}

fn write_over_time(svg: &mut String, title: &str, rows: &[(&str, &LatencyRow)]) -> fmt::Result {
    let values = rows.iter().flat_map(|(_, row)| row.passes.iter().flat_map(|(p50, p99)| [*p50, *p99]));
    let axis = panel(svg, title, rows, values, "latency over time")?;
    let passes = rows.iter().map(|(_, row)| row.passes.len()).max().unwrap_or(0);
    let place = |pass: usize| {
        let share = pass as f64 / passes.saturating_sub(1).max(1) as f64;
        PANEL_LEFT + share * (PANEL_WIDTH - PANEL_LEFT - PANEL_RIGHT)
    };
    below(svg, place(0), "pass 1")?;
    below(svg, place(passes.saturating_sub(1)) - 6.0, &passes.to_string())?;
    for (number, (_, row)) in rows.iter().enumerate() {
        let passes = || row.passes.iter().enumerate();
        curve(svg, number, "curve", passes().map(|(pass, (p50, _))| (place(pass), axis.at(*p50))))?;
        curve(svg, number, "curve faint", passes().map(|(pass, (_, p99))| (place(pass), axis.at(*p99))))?;
    }
    svg.push_str("</svg>\n");
    Ok(())
}

/// Title, names of the curves, and the axis of latencies at the left.
fn panel(
    svg: &mut String,
    title: &str,
    rows: &[(&str, &LatencyRow)],
    values: impl Iterator<Item = f64>,
    what: &str,
) -> Result<Axis, fmt::Error> {
    open(svg, PANEL_WIDTH, PANEL_HEIGHT + 6.0, &format!("{title}: {what}"))?;
    writeln!(svg, "<text class=\"bold\" x=\"0\" y=\"13\">{}</text>", Escaped(title))?;
    write!(svg, "<text x=\"0\" y=\"31\">")?;
    for (number, (name, _)) in rows.iter().enumerate() {
        let gap = if number == 0 { 0 } else { 14 };
        write!(svg, "<tspan class=\"name c{}\" dx=\"{gap}\">{}</tspan>", number + 1, Escaped(name))?;
    }
    writeln!(svg, "</text>")?;
    let axis = Axis::over(values, PANEL_BOTTOM, PANEL_TOP);
    for (micros, words) in axis.decades() {
        let y = axis.at(micros);
        line(svg, "grid", (PANEL_LEFT, y), (PANEL_WIDTH - PANEL_RIGHT, y))?;
        let (x, y) = (PANEL_LEFT - 6.0, y + 4.0);
        writeln!(svg, "<text class=\"soft\" x=\"{x}\" y=\"{y:.1}\" text-anchor=\"end\">{words}</text>")?;
    }
    Ok(axis)
}

fn open(svg: &mut String, width: f64, height: f64, label: &str) -> fmt::Result {
    writeln!(
        svg,
        "<svg viewBox=\"0 0 {width} {height}\" xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" aria-label=\"{}\">",
        Escaped(label)
    )
}

fn line(svg: &mut String, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) -> fmt::Result {
    writeln!(svg, "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>")
}

fn below(svg: &mut String, x: f64, words: &str) -> fmt::Result {
    let y = PANEL_BOTTOM + 15.0;
    writeln!(svg, "<text class=\"soft\" x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{words}</text>")
}

fn curve(
    svg: &mut String,
    number: usize,
    class: &str,
    points: impl Iterator<Item = (f64, f64)>,
) -> fmt::Result {
    write!(svg, "<polyline class=\"{class} c{}\" points=\"", number + 1)?;
    for (x, y) in points {
        write!(svg, "{x:.1},{y:.1} ")?;
    }
    writeln!(svg, "\"/>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_whole_decades_and_keeps_order() {
        let axis = Axis::over([3.0, 47_000.0].into_iter(), 0.0, 500.0);
        let decades: Vec<_> = axis.decades().map(|(_, words)| words).collect();
        assert_eq!(decades, ["1 µs", "10 µs", "100 µs", "1 ms", "10 ms", "100 ms"]);
        assert!((axis.at(1.0) - 0.0).abs() < 1e-6 && (axis.at(100_000.0) - 500.0).abs() < 1e-6);
        assert!((axis.at(100.0) - 200.0).abs() < 1e-6);
        assert!(axis.at(3.0) < axis.at(4.0) && axis.at(0.0) >= 0.0);
        // Nothing, and a single value, still make an axis.
        assert_eq!(Axis::over(std::iter::empty(), 0.0, 1.0).decades().count(), 4);
        assert_eq!(Axis::over([5.0].into_iter(), 0.0, 1.0).decades().count(), 3);
        assert_eq!(Axis::over([0.3].into_iter(), 0.0, 1.0).decades().next().unwrap().1, "0.1 µs");
    }
}
