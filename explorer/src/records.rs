//! Records as bytes: what producers send, and what consumers make of a fetch.

use bytes::Bytes;
use kaas_engine::batch::{
    BatchError, BatchHeader, BatchOptions, DecodeLimits, EndMarker, Producer, Record, SimpleRecord,
    check_crc, data_batch, decode_records, read_marker,
};
use kaas_engine::types::Timestamp;

use crate::names;

/// What records look like in a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The value is the name.
    Values,
    /// A key, and a value or none, as the name has it; the name itself is in a header.
    Keyed,
}

/// The header that has the name.
const NAME: &str = "name";

impl Form {
    fn record(self, name: String) -> SimpleRecord {
        if self == Self::Values {
            return SimpleRecord::of_value(name);
        }
        let value = (!names::is_tombstone(&name)).then(|| Bytes::from(name.clone()));
        SimpleRecord {
            key: Some(names::key(&name).into()),
            value,
            headers: vec![(Bytes::from_static(NAME.as_bytes()), Some(name.into()))],
            ..SimpleRecord::default()
        }
    }

    /// The name of a record; `None` if it is not what was sent under that name.
    fn name(self, record: &Record) -> Option<String> {
        let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
        if self == Self::Values {
            return record.value.as_ref().map(text);
        }
        let header = record.headers.first()?;
        let name = header.value.as_ref().map(text)?;
        let sent = self.record(name.clone());
        let is_that = header.key == NAME.as_bytes() && record.key == sent.key && record.value == sent.value;
        is_that.then_some(name)
    }
}

/// A batch of the records of these names.
pub fn encode(
    names: impl Iterator<Item = String>,
    form: Form,
    base_timestamp: Timestamp,
    producer: Option<Producer>,
    transactional: bool,
) -> Result<Bytes, BatchError> {
    let records: Vec<_> = names.map(|name| form.record(name)).collect();
    let options = BatchOptions { base_timestamp, producer, transactional, ..BatchOptions::default() };
    data_batch(&records, &options)
}

/// A batch of one record by nobody.
pub fn plain(name: &str, form: Form, timestamp: Timestamp) -> Result<Bytes, BatchError> {
    encode(std::iter::once(name.to_owned()), form, timestamp, None, false)
}

/// What is wrong with fetched bytes.
#[derive(Debug, thiserror::Error)]
pub enum FetchProblem {
    #[error(transparent)]
    Batch(#[from] BatchError),
    #[error("at offset {offset}: key {key:?}, value {value:?}, which nobody has sent so")]
    Altered { offset: i64, key: Option<Bytes>, value: Option<Bytes> },
}

/// A batch that was fetched.
#[derive(Debug, Clone)]
pub struct Fetched {
    pub header: BatchHeader,
    /// What a control batch says.
    pub marker: Option<EndMarker>,
    /// Offsets and names; a marker counts as one.
    pub records: Vec<(i64, String)>,
}

/// The batches of a fetch.
pub fn decode(mut rest: Bytes, form: Form) -> Result<Vec<Fetched>, FetchProblem> {
    let mut batches = Vec::new();
    while !rest.is_empty() {
        check_crc(&rest)?;
        let header = BatchHeader::parse(&rest)?;
        let marker = read_marker(&rest)?;
        let mut records = Vec::new();
        if let (Some(end), Some(producer)) = (marker, header.producer_id) {
            records.push((header.base_offset.0, names::of_marker(producer, end)));
        } else if !header.is_control() {
            for record in decode_records(&rest, &DecodeLimits::default())? {
                let record = record?;
                let Some(name) = form.name(&record) else {
                    let Record { offset, key, value, .. } = record;
                    return Err(FetchProblem::Altered { offset: offset.0, key, value });
                };
                records.push((record.offset.0, name));
            }
        }
        rest = rest.slice(header.batch_bytes.min(rest.len())..);
        batches.push(Fetched { header, marker, records });
    }
    Ok(batches)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_under_their_names() {
        let names: Vec<String> = (0..9).map(|n| format!("1-{n}")).collect();
        for form in [Form::Values, Form::Keyed] {
            let batch = encode(names.iter().cloned(), form, Timestamp(5), None, false).unwrap();
            let batches = decode(batch, form).unwrap();
            let found: Vec<_> = batches[0].records.iter().map(|(_, name)| name.clone()).collect();
            assert_eq!(found, names);
        }
    }

    #[test]
    fn a_record_that_was_changed_is_found() {
        let mut record = Form::Keyed.record("1-0".into());
        record.key = Some("other".into());
        let batch = data_batch(&[record], &BatchOptions::default()).unwrap();
        assert!(matches!(decode(batch, Form::Keyed), Err(FetchProblem::Altered { offset: 0, .. })));
    }
}
