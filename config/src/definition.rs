//! What a config is: the row of a table.

use std::borrow::Cow;
use std::fmt;

/// The type of a config's value, with the codes of DescribeConfigs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConfigType {
    Boolean = 1,
    String = 2,
    Int = 3,
    Short = 4,
    Long = 5,
    Double = 6,
    List = 7,
    Class = 8,
    Password = 9,
}

impl ConfigType {
    /// The code on the wire.
    pub fn code(self) -> i8 {
        match self {
            Self::Boolean => 1,
            Self::String => 2,
            Self::Int => 3,
            Self::Short => 4,
            Self::Long => 5,
            Self::Double => 6,
            Self::List => 7,
            Self::Class => 8,
            Self::Password => 9,
        }
    }
}

impl fmt::Display for ConfigType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Boolean => "BOOLEAN",
            Self::String => "STRING",
            Self::Int => "INT",
            Self::Short => "SHORT",
            Self::Long => "LONG",
            Self::Double => "DOUBLE",
            Self::List => "LIST",
            Self::Class => "CLASS",
            Self::Password => "PASSWORD",
        })
    }
}

/// How much a config matters, by Kafka's classification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Importance {
    High,
    Medium,
    Low,
}

/// Which values of the type are valid. Bounds are inclusive.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Valid {
    Any,
    AtLeast(i64),
    Between(i64, i64),
    /// Between the first two, or equal to the third.
    BetweenOr(i64, i64, i64),
    /// -1 for "no limit", or at least 1.
    UnlimitedOrAtLeastOne,
    /// 0.0 to 1.0.
    Ratio,
    /// A share that is not nothing: above 0.0, at most 1.0.
    Share,
    /// Above 0.0.
    Positive,
    OneOf(&'static [&'static str]),
    /// A list of these only.
    ListOf(&'static [&'static str]),
    /// `*`, or a list of `partition:broker`.
    ThrottledReplicas,
    /// A Kafka version such as `0.11.0`, `2.8` or `3.0-IV1`.
    KafkaVersion,
}

/// What acts on a config here. Shown at the end of the documentation, unless it is [`Effect::Acts`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Takes effect at once, or at the start if it is read-only.
    Acts,
    /// Would act on replicas; kaas has none, the volume is the replica.
    Replicas,
    /// Acts on compacted topics only.
    Compaction,
    /// Acts only where the broker compresses again, which it never does.
    Recompression,
    /// Acts only with tiered storage, which kaas does not have.
    TieredStorage,
    /// Acts on old record formats only; kaas stores format v2 and serves nothing else.
    OldFormats,
    /// Would put off what needs no putting off here: nobody but the leader holds a segment's file.
    AtOnce,
}

impl Effect {
    /// The sentence for the documentation.
    pub fn note(self) -> Option<&'static str> {
        match self {
            Self::Acts => None,
            Self::Replicas => Some(
                "No effect without replicas: in kaas the shared volume is the replica, and every partition has exactly one.",
            ),
            Self::Compaction => Some("Acts on compacted topics only."),
            Self::Recompression => Some(
                "No effect: kaas keeps batches as the producer compressed them, as Kafka does with compression.type=producer.",
            ),
            Self::TieredStorage => Some("No effect without tiered storage, which kaas does not have."),
            Self::AtOnce => Some(
                "No effect: kaas deletes a file as soon as the manifest without it is durable and no reader is in it.",
            ),
            Self::OldFormats => {
                Some("No effect: kaas stores record format v2 only, and every client it serves reads that.")
            }
        }
    }
}

/// One config.
#[derive(Debug, Clone)]
pub struct Definition {
    pub name: &'static str,
    pub kind: ConfigType,
    /// The default as text; `None` for "not set" (null).
    pub default: Option<&'static str>,
    pub valid: Valid,
    pub importance: Importance,
    pub effect: Effect,
    /// Whether admin requests may change it. Always true for topics.
    pub dynamic: bool,
    /// What it does, without the note of its effect.
    pub summary: Cow<'static, str>,
}

impl Definition {
    /// A dynamic config of medium importance, which the topic table consists of.
    pub(super) const fn topic(
        name: &'static str,
        kind: ConfigType,
        default: &'static str,
        valid: Valid,
        effect: Effect,
        summary: &'static str,
    ) -> Self {
        Self {
            name,
            kind,
            default: Some(default),
            valid,
            importance: Importance::Medium,
            effect,
            dynamic: true,
            summary: Cow::Borrowed(summary),
        }
    }

    /// A read-only broker config of high importance.
    pub(super) const fn fixed(
        name: &'static str,
        kind: ConfigType,
        default: Option<&'static str>,
        valid: Valid,
        summary: &'static str,
    ) -> Self {
        Self {
            name,
            kind,
            default,
            valid,
            importance: Importance::High,
            effect: Effect::Acts,
            dynamic: false,
            summary: Cow::Borrowed(summary),
        }
    }

    pub(super) const fn importance(mut self, importance: Importance) -> Self {
        self.importance = importance;
        self
    }

    pub(super) const fn dynamic(mut self) -> Self {
        self.dynamic = true;
        self
    }

    pub(super) const fn effect(mut self, effect: Effect) -> Self {
        self.effect = effect;
        self
    }

    /// The documentation as DescribeConfigs shows it.
    pub fn documentation(&self) -> String {
        match self.effect.note() {
            Some(note) => format!("{} {note}", self.summary),
            None => self.summary.clone().into_owned(),
        }
    }

    /// Whether its value is never shown.
    pub fn is_sensitive(&self) -> bool {
        self.kind == ConfigType::Password
    }
}
