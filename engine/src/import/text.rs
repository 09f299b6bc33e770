//! The report for people: a table of the topics, what is special about each, what is in the way and what to do about it, and
//! one line at the end that says it all.

use kaas_substrate::printable;

use super::Problem;
use super::report::{ClusterIdReport, ConfigReport, DefaultReport, Doubt, PassedOver, Report, TopicReport};
use crate::fold::fold;
use crate::verify::{counted, grouped};

/// Lines that follow are indented by this much more than the first.
const HANGING: usize = 2;

impl Report {
    /// For people, in lines of at most `width` characters; paths and names are not broken.
    pub fn to_text(&self, width: usize) -> String {
        let mut page = Page { text: String::new(), width };
        self.write_topics(&mut page);
        if !self.already_there.is_empty() {
            page.line(0, &format!("already there: {}", self.already_there.join(", ")));
        }
        if !self.not_here.is_empty() {
            let names = self.not_here.join(", ");
            page.line(0, &format!("not in these directories, though Kafka has them: {names}"));
        }
        for PassedOver { path, reason } in &self.passed_over {
            page.line(0, &format!("{}: passed over: {reason}", printable(path)));
        }
        if !self.has_metadata && !self.topics.is_empty() {
            page.line(0, "no topic configs: there is no __cluster_metadata-0 here (--config sets them)");
        }
        self.write_defaults(&mut page);
        if let Some(ClusterIdReport { kafka, kept }) = &self.cluster_id_left {
            let told = format!(
                "Kafka's cluster id {kafka} is not carried over: the data directory has {kept} already; clients see \
                 another cluster"
            );
            page.line(0, &told);
        }
        for Doubt { path, doubt } in &self.doubts {
            page.line(0, &format!("in doubt: {}: {doubt}", printable(path)));
        }
        self.write_problems(&mut page);
        if self.groups > 0 {
            let groups = counted(self.groups as u64, "group", "groups");
            let offsets = counted(self.committed_offsets as u64, "committed offset", "committed offsets");
            page.line(0, &format!("{groups} with {offsets}"));
        }
        page.line(0, &self.end());
        page.text
    }

    fn write_topics(&self, page: &mut Page) {
        let width = self.topics.iter().map(|topic| topic.name.len()).max().unwrap_or(0).max(5);
        if !self.topics.is_empty() {
            page.row(&format!(
                "{:width$}  {:>10}  {:>12}  {:>16}",
                "topic", "partitions", "records", "bytes"
            ));
        }
        for topic in &self.topics {
            let records: u64 = topic.partitions.iter().map(|partition| partition.records).sum();
            let bytes: u64 = topic.partitions.iter().map(|partition| partition.bytes).sum();
            let (partitions, records, bytes) = (topic.partitions.len(), grouped(records), grouped(bytes));
            page.row(&format!("{:width$}  {partitions:>10}  {records:>12}  {bytes:>16}", topic.name));
            write_notes(page, topic);
        }
    }

    /// What topics have from Kafka's brokers, once for all of them.
    fn write_defaults(&self, page: &mut Page) {
        if !self.broker_defaults.is_empty() || !self.broker_defaults_not_carried.is_empty() {
            page.line(0, "defaults of Kafka's brokers, for topics without configs of their own:");
        }
        for DefaultReport { name, value, broker_config, path } in &self.broker_defaults {
            page.line(2, &format!("{name}={value} ({broker_config} in {})", printable(path)));
        }
        for ConfigReport { name, value, reason } in &self.broker_defaults_not_carried {
            page.line(2, &format!("not carried over: {name}={value}: {reason}"));
        }
        if !self.has_server_properties && !self.topics.is_empty() {
            page.line(
                0,
                "server.properties was not given: topics without configs of their own get the defaults of kaas in place of \
                 those that are set there (--server-properties FILE)",
            );
        }
    }

    /// Problems of which the same is to be done stand together, with that behind them.
    fn write_problems(&self, page: &mut Page) {
        let mut hints: Vec<&str> = Vec::new();
        for problem in &self.problems {
            if !hints.contains(&problem.hint) {
                hints.push(problem.hint);
            }
        }
        for hint in hints {
            for Problem { path, problem, .. } in self.problems.iter().filter(|problem| problem.hint == hint) {
                page.line(0, &format!("problem: {}: {problem}", printable(path)));
            }
            page.line(2, &format!("hint: {hint}"));
        }
    }

    fn end(&self) -> String {
        let topics = counted(self.topics.len() as u64, "topic", "topics");
        let partitions = counted(self.partitions as u64, "partition", "partitions");
        let records = counted(self.records, "record", "records");
        let bytes = counted(self.bytes, "byte", "bytes");
        match self.problems.len() {
            0 if self.is_done => format!("imported: {topics}, {partitions}, {records}, {bytes}"),
            0 => format!("can be imported: {topics}, {partitions}, {records}, {bytes}"),
            count => {
                let problems = counted(count as u64, "problem", "problems");
                format!("cannot be imported, nothing was written: {problems}")
            }
        }
    }
}

/// What is special about a topic.
fn write_notes(page: &mut Page, topic: &TopicReport) {
    if topic.has_new_topic_id {
        let id = &topic.topic_id;
        page.line(2, &format!("no topic id in Kafka's files (partition.metadata): it gets {id}"));
    }
    for ConfigReport { name, value, reason } in &topic.configs_not_carried {
        page.line(2, &format!("not carried over: {name}={value}: {reason}"));
    }
    for partition in &topic.partitions {
        if let Some(cut) = &partition.cut {
            let (number, bytes) = (partition.partition, counted(cut.bytes, "byte", "bytes"));
            page.line(
                2,
                &format!("partition {number}: cut off at offset {}, {bytes}: {}", cut.offset, cut.reason),
            );
        }
    }
}

/// The text so far.
struct Page {
    text: String,
    width: usize,
}

impl Page {
    /// Words, folded.
    fn line(&mut self, indent: usize, words: &str) {
        fold(&mut self.text, &" ".repeat(indent), indent + HANGING, words, self.width);
    }

    /// A row of a table.
    fn row(&mut self, row: &str) {
        self.text.push_str(row);
        self.text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::fold::WIDTH;

    #[test]
    fn a_hint_stands_once_behind_the_problems_that_have_it() {
        let problem = |text: &str, hint| Problem::new(PathBuf::from("/kafka"), text, hint);
        let problems =
            vec![problem("one", "do this"), problem("three", "do that"), problem("two", "do this")];
        let text = Report { problems, ..Report::default() }.to_text(WIDTH);
        let expected = "problem: /kafka: one\nproblem: /kafka: two\n  hint: do this\nproblem: /kafka: three\n  \
                        hint: do that\ncannot be imported, nothing was written: 3 problems\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn one_is_not_many() {
        let counts = Report { partitions: 1, records: 1, bytes: 1, ..Report::default() };
        assert_eq!(counts.to_text(WIDTH), "can be imported: 0 topics, 1 partition, 1 record, 1 byte\n");
        let problems = vec![Problem::new(PathBuf::from("/kafka"), "one", "do this")];
        let report = Report { problems, groups: 1, committed_offsets: 1, ..Report::default() };
        let text = report.to_text(WIDTH);
        assert!(
            text.contains("1 group with 1 committed offset\n") && text.ends_with(": 1 problem\n"),
            "{text}"
        );
    }
}
