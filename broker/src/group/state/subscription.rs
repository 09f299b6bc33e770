//! Reads the topics out of a consumer's subscription.
//!
//! The format is Kafka's consumer protocol: a version, then the topic names; every later version keeps this
//! beginning. The bytes come from clients: anything malformed is `None`, and the coordinator then does not know
//! the topics.

use std::collections::BTreeSet;

/// The subscribed topics, or `None` if the bytes are not a subscription.
pub fn topics(subscription: &[u8]) -> Option<BTreeSet<String>> {
    let rest = subscription;
    let (version, rest) = rest.split_first_chunk::<2>()?;
    if i16::from_be_bytes(*version) < 0 {
        return None;
    }
    let (count, mut rest) = rest.split_first_chunk::<4>()?;
    let count = usize::try_from(i32::from_be_bytes(*count)).ok()?;
    // A name takes at least its two bytes of length: a longer count lies, and must not cost memory.
    if count > rest.len() / 2 {
        return None;
    }
    let mut topics = BTreeSet::new();
    for _ in 0..count {
        let (length, after) = rest.split_first_chunk::<2>()?;
        let length = usize::try_from(i16::from_be_bytes(*length)).ok()?;
        let (name, after) = after.split_at_checked(length)?;
        topics.insert(std::str::from_utf8(name).ok()?.to_owned());
        rest = after;
    }
    Some(topics)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(version: i16, names: &[&str]) -> Vec<u8> {
        let mut out = version.to_be_bytes().to_vec();
        out.extend(i32::try_from(names.len()).unwrap().to_be_bytes());
        for name in names {
            out.extend(i16::try_from(name.len()).unwrap().to_be_bytes());
            out.extend(name.as_bytes());
        }
        out
    }

    #[test]
    fn reads_topics_of_every_version() {
        let mut bytes = encode(3, &["b", "a"]);
        bytes.extend([0xff; 9]);
        assert_eq!(topics(&bytes), Some(BTreeSet::from(["a".to_owned(), "b".to_owned()])));
        assert_eq!(topics(&encode(0, &[])), Some(BTreeSet::new()));
    }

    #[test]
    fn malformed_bytes_are_none() {
        assert_eq!(topics(b""), None);
        assert_eq!(topics(&encode(-1, &["a"])), None);
        let whole = encode(1, &["topic"]);
        for end in 0..whole.len() {
            assert_eq!(topics(&whole[..end]), None, "cut at {end}");
        }
        assert_eq!(topics(&[0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 0]), None);
        assert_eq!(topics(&[0, 0, 0, 0, 0, 1, 0, 1, 0xff]), None);
    }
}
