//! Values that Kafka takes and kaas would have to ignore. They are refused, with the reason.
//!
//! Building one of them means removing its line here.

use super::error::ConfigError;
use super::value::{Value, kafka_version};

struct Unsupported {
    name: &'static str,
    /// The value, or one element of the list.
    value: &'static str,
    reason: &'static str,
}

const RECOMPRESSION: &str = "kaas stores every batch exactly as the producer sent it and never compresses again; only 'producer' is supported (set compression.type on the producer instead)";
const PREALLOCATION: &str = "kaas does not preallocate segment files; only 'false' is supported";

const TIERED: &str = "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage.";

const UNSUPPORTED: &[Unsupported] = &[
    Unsupported { name: "compression.type", value: "uncompressed", reason: RECOMPRESSION },
    Unsupported { name: "compression.type", value: "gzip", reason: RECOMPRESSION },
    Unsupported { name: "compression.type", value: "snappy", reason: RECOMPRESSION },
    Unsupported { name: "compression.type", value: "lz4", reason: RECOMPRESSION },
    Unsupported { name: "compression.type", value: "zstd", reason: RECOMPRESSION },
    Unsupported { name: "log.preallocate", value: "true", reason: PREALLOCATION },
    Unsupported { name: "preallocate", value: "true", reason: PREALLOCATION },
    Unsupported { name: "remote.storage.enable", value: "true", reason: TIERED },
];

/// Refuses `value` if it is in the table.
pub(super) fn check(name: &str, value: &Value, text: &str) -> Result<(), ConfigError> {
    let refused = |reason| ConfigError::Unsupported { name: name.to_owned(), value: text.to_owned(), reason };
    for row in UNSUPPORTED.iter().filter(|row| row.name == name) {
        let hit = match value {
            Value::List(elements) => elements.iter().any(|element| element == row.value),
            other => other.to_string() == row.value,
        };
        if hit {
            return Err(refused(row.reason));
        }
    }
    if let ("message.format.version" | "log.message.format.version", Value::Text(version)) = (name, value)
        && kafka_version(version).is_some_and(|version| version < (0, 11))
    {
        return Err(refused("record formats before v2 (Kafka 0.11) are not supported"));
    }
    Ok(())
}
